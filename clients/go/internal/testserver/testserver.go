// Package testserver starts servers with the module, for tests.
package testserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"go/format"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Patience is how long a test waits for what must come.
const Patience = 60 * time.Second

// Late is how much later than its time a call may return on a machine that is busy. The conformance
// suite measures the 250 ms of the contract.
const Late = 2 * time.Second

// Server is a running server, of the program in REDIS_LOCK_RIG.
type Server struct {
	Address string
	Client  *redis.Client
	rig     *exec.Cmd
	orders  io.WriteCloser
	replies *bufio.Reader
}

// Start starts a server by an order of tests/rig/src/main.rs.
func Start(order string) (*Server, error) {
	rig := exec.Command(os.Getenv("REDIS_LOCK_RIG"), "serve")
	rig.Stderr = os.Stderr
	orders, noInput := rig.StdinPipe()
	output, noOutput := rig.StdoutPipe()
	if err := errors.Join(noInput, noOutput, rig.Start()); err != nil {
		return nil, err
	}
	s := &Server{rig: rig, orders: orders, replies: bufio.NewReader(output)}
	port, err := s.order(order)
	s.Address = "127.0.0.1:" + port
	s.Client = redis.NewClient(&redis.Options{Addr: s.Address})
	return s, err
}

// order sends an order, and returns what follows the word ok of its reply.
func (s *Server) order(words string) (string, error) {
	if _, err := fmt.Fprintln(s.orders, words); err != nil {
		return "", err
	}
	reply, err := s.replies.ReadString('\n')
	status, rest, _ := strings.Cut(strings.TrimSpace(reply), " ")
	if err == nil && status != "ok" {
		err = fmt.Errorf("%s: %q", words, reply)
	}
	return rest, err
}

// End kills the server. It returns an error if the server has crashed before.
func (s *Server) End() error {
	if s.rig.ProcessState != nil {
		return nil
	}
	return errors.Join(s.Client.Close(), s.orders.Close(), s.rig.Wait())
}

// Serve returns a server with the module that ends with the test.
func Serve(t *testing.T) *Server {
	t.Helper()
	s, err := Start("start")
	Check(t, err)
	t.Cleanup(func() { Check(t, s.End()) })
	return s
}

// Main runs the tests of a package, with a server for its examples, whose address it sets.
func Main(m *testing.M, address *string) int {
	redis.SetLogger(quiet{})
	s, err := Start("start")
	if err != nil {
		panic(err)
	}
	defer s.End()
	*address = s.Address
	return m.Run()
}

// quiet is a logger that writes nothing, because go-redis logs each connection that fails.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// Stop stops the server until the returned function is called.
func (s *Server) Stop(t *testing.T) func() {
	t.Helper()
	order := func(verb string) {
		_, err := s.order(verb + strings.TrimPrefix(s.Address, "127.0.0.1:"))
		Check(t, err)
	}
	order("freeze ")
	return func() { order("thaw ") }
}

// Call sends a command, and returns its reply, or nil.
func (s *Server) Call(t *testing.T, words ...any) any {
	t.Helper()
	reply, err := s.Client.Do(context.Background(), words...).Result()
	if !errors.Is(err, redis.Nil) {
		Check(t, err)
	}
	return reply
}

// IsFree returns true if nobody holds the lock or waits for it.
func (s *Server) IsFree(t *testing.T, key string) bool {
	t.Helper()
	return s.Call(t, "LOCK.INFO", key) == nil
}

// Waiters returns how many wait for the lock.
func (s *Server) Waiters(t *testing.T, key string) int64 {
	t.Helper()
	info, _ := s.Call(t, "LOCK.INFO", key).(map[any]any)
	count, _ := info["waiters"].(int64)
	return count
}

// Holder returns the fields of the first holder of the lock.
func (s *Server) Holder(t *testing.T, key string) map[any]any {
	t.Helper()
	info, _ := s.Call(t, "LOCK.INFO", key).(map[any]any)
	if holders, _ := info["holders"].([]any); len(holders) > 0 {
		return holders[0].(map[any]any)
	}
	return nil
}

// Check ends the test with an error, unless it is nil.
func Check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Expect checks that an error is each of these.
func Expect(t *testing.T, err error, all ...error) {
	t.Helper()
	for _, expected := range all {
		if !errors.Is(err, expected) {
			t.Errorf("%v instead of %v", err, expected)
		}
	}
}

// Until waits until something is true.
func Until(t *testing.T, what string, isTrue func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !isTrue(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Takes checks how long a call takes.
func Takes(t *testing.T, what string, expected, tolerance time.Duration, call func()) {
	t.Helper()
	began := time.Now()
	call()
	if took := time.Since(began); took < expected-Late/10 || took > expected+tolerance {
		t.Errorf("%s took %v instead of %v", what, took, expected)
	} else {
		t.Logf("%s took %v", what, took)
	}
}

// Blocks returns the code blocks of a language in a page, in their order.
func Blocks(page, language string) []string {
	var found []string
	for _, rest := range strings.Split(page, "```"+language+"\n")[1:] {
		found = append(found, strings.SplitN(rest, "```", 2)[0])
	}
	return found
}

// RunPage runs each program of a page, and checks that it prints the block of text after it. The
// addresses in the programs are replaced.
func RunPage(t *testing.T, path string, addresses ...string) {
	t.Helper()
	page, err := os.ReadFile(path)
	Check(t, err)
	programs, texts := Blocks(string(page), "go"), Blocks(string(page), "text")
	if len(programs) == 0 || len(programs) != len(texts) {
		t.Fatalf("%d programs and %d texts", len(programs), len(texts))
	}
	source := filepath.Join(t.TempDir(), "main.go")
	for i, program := range programs {
		program = strings.NewReplacer(addresses...).Replace(program)
		Check(t, os.WriteFile(source, []byte(program), 0o644))
		said, err := exec.Command("go", "run", source).CombinedOutput()
		if err != nil || string(said) != texts[i] {
			t.Errorf("program %d printed %q instead of %q: %v", i, said, texts[i], err)
		}
		formatted, err := format.Source([]byte(program))
		if err != nil || string(formatted) != program {
			t.Errorf("program %d isn't formatted: %v", i, err)
		}
	}
}

// Is returns a call for RunTable that fails unless something is true.
func Is(isTrue func() bool) func() error {
	return func() error {
		if !isTrue() {
			return errors.New("not so")
		}
		return nil
	}
}

// RunTable runs the code in a column of a table of a page, in the order of the page. Columns count
// from 0, and header is the begin of the table. Each call must be there, and have a function.
func RunTable(t *testing.T, path, header string, column int, calls map[string]func() error) {
	t.Helper()
	page, err := os.ReadFile(path)
	Check(t, err)
	_, table, isThere := strings.Cut(string(page), "\n"+header)
	if !isThere {
		t.Fatalf("no table %s", header)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	missing := maps.Clone(calls)
	for _, row := range strings.Split(table, "\n")[2:] {
		for i, code := range strings.Split(strings.Split(row, " | ")[column], "`") {
			if i%2 == 0 {
				continue
			}
			delete(missing, code)
			if call := calls[code]; call == nil {
				t.Errorf("no function for %s", code)
			} else if err := call(); err != nil {
				t.Errorf("%s: %v", code, err)
			}
		}
	}
	for code := range missing {
		t.Errorf("the page lacks %s", code)
	}
}
