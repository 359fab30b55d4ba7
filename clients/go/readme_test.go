package redislock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
)

// The blocks of the README: the first lock, a part, a program, and two more parts.
func TestTheReadmesProgramsRun(t *testing.T) {
	page := testserver.Read(t, "README.md")
	here, err := filepath.Abs(".")
	check(t, err)
	s, folder := serve(t), t.TempDir()
	check(t, os.MkdirAll(filepath.Join(folder, "redis-lock/clients"), 0o755))
	check(t, os.Symlink(here, filepath.Join(folder, "redis-lock/clients/go")))
	project := filepath.Join(folder, "first-lock")
	write := func(name, source string) {
		source = strings.ReplaceAll(source, "127.0.0.1:6379", s.Address)
		check(t, os.MkdirAll(filepath.Join(project, filepath.Dir(name)), 0o755))
		check(t, os.WriteFile(filepath.Join(project, name), []byte(source), 0o644))
	}
	// says runs a script of the README, and returns what it prints.
	says := func(folder, script string) string {
		command := exec.Command("sh", "-euc", script)
		command.Dir = folder
		output, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return string(output)
	}
	commands, programs := testserver.Blocks(page, "sh"), testserver.Blocks(page, "go")
	says(folder, commands[0])
	write("main.go", programs[0])
	says(project, commands[1])
	write("parts/parts.go", fmt.Sprintf(parts, programs[1]+programs[3]+programs[4]))
	says(project, "go vet ./parts")
	write("second/main.go", programs[2])
	text := testserver.Blocks(page, "text")[0]
	equal(t, "the second program", says(project, "go run ./second"), text)

	// Held until both programs wait, however long the second program takes to start.
	s.Call(t, "LOCK.ACQUIRE", "orders:42", "other", "PX", 600_000)
	said := make(chan string, 2)
	for waiting := range int64(2) {
		go func() { said <- says(project, "./first-lock") }()
		s.UntilWaiting(t, "orders:42", waiting+1)
	}
	s.Call(t, "LOCK.RELEASE", "orders:42", "other")
	fences := [2]int64{}
	for i := range fences {
		output := testserver.Receive(t, said)
		_, err := fmt.Sscanf(output, "got it, fence %d\nreleased\n", &fences[i])
		check(t, err)
	}
	if fences[1] <= fences[0] {
		t.Errorf("fences %v", fences)
	}
}

// A package of the README's blocks that are parts of a program.
const parts = `package parts

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

func all(
	ctx context.Context, lock *redislock.Lock, client *redis.Client, tlsConfig *tls.Config,
	sentinels, nodes []string, store func(context.Context, int64) error,
) (*redislock.Locks, []redis.UniversalClient, error) {
	var err error
	%s
	return locks, []redis.UniversalClient{one, sentinel, cluster}, err
}
`
