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
	page, err := os.ReadFile("README.md")
	check(t, err)
	here, err := filepath.Abs(".")
	check(t, err)
	s := serve(t)
	folder := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(folder, "redis-lock/clients"), 0o755))
	check(t, os.Symlink(here, filepath.Join(folder, "redis-lock/clients/go")))
	commands, programs := testserver.Blocks(string(page), "sh"), testserver.Blocks(string(page), "go")
	shell(t, folder, commands[0])
	project := filepath.Join(folder, "first-lock")
	write := func(name, source string) {
		source = strings.ReplaceAll(source, "127.0.0.1:6379", s.Address)
		check(t, os.MkdirAll(filepath.Join(project, filepath.Dir(name)), 0o755))
		check(t, os.WriteFile(filepath.Join(project, name), []byte(source), 0o644))
	}
	write("main.go", programs[0])
	shell(t, project, commands[1])
	write("parts/parts.go", partsOf(programs[1], programs[3], programs[4]))
	shell(t, project, "go vet ./parts")
	write("second/main.go", programs[2])
	said, err := exec.Command("go", "run", "-C", project, "./second").CombinedOutput()
	if text := testserver.Blocks(string(page), "text")[0]; err != nil || string(said) != text {
		t.Errorf("%q instead of %q: %v", said, text, err)
	}

	run := func() chan string {
		said := make(chan string, 1)
		go func() {
			output, err := exec.Command(filepath.Join(project, "first-lock")).CombinedOutput()
			said <- fmt.Sprint(string(output), err)
		}()
		return said
	}
	// Held until both programs wait, however long the second program takes to start.
	s.Call(t, "LOCK.ACQUIRE", "orders:42", "other", "PX", 600_000)
	first := run()
	until(t, "the first one waits", func() bool { return s.Waiters(t, "orders:42") == 1 })
	second := run()
	until(t, "the second one waits", func() bool { return s.Waiters(t, "orders:42") == 2 })
	s.Call(t, "LOCK.RELEASE", "orders:42", "other")
	fences := [2]int64{}
	for i, said := range []string{receive(t, first), receive(t, second)} {
		if _, err := fmt.Sscanf(said, "got it, fence %d\nreleased\n<nil>", &fences[i]); err != nil {
			t.Fatalf("%v: %q", err, said)
		}
	}
	if fences[1] <= fences[0] {
		t.Errorf("fences %v", fences)
	}
}

// shell runs a script of the README.
func shell(t *testing.T, folder, script string) {
	t.Helper()
	command := exec.Command("sh", "-euc", script)
	command.Dir = folder
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

// partsOf returns a package of the README's blocks that are parts of a program.
func partsOf(blocks ...string) string {
	return `package parts

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

func all(
	ctx context.Context, lock *redislock.Lock, client *redis.Client, tlsConfig *tls.Config, sentinels, nodes []string,
	store func(context.Context, int64) error,
) (*redislock.Locks, []redis.UniversalClient, error) {
	var err error
` + strings.Join(blocks, "\n") + `
	return locks, []redis.UniversalClient{one, sentinel, cluster}, err
}
`
}
