// Package testserver starts servers with the module, for tests.
package testserver

import (
	"context"
	"errors"
	"go/format"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Patience is how long a test waits for what must come.
const Patience = 60 * time.Second

// Late is how much later than its time a call may return on a machine that is busy. The conformance
// suite measures the 250 ms of the contract.
const Late = 2 * time.Second

// Server is a running server.
type Server struct {
	Address string
	Client  *redis.Client
	process *os.Process
}

// Start starts the server in REDIS_SERVER with these arguments.
func Start(dir string, arguments ...string) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	arguments = append([]string{"--port", port, "--save", ""}, arguments...)
	command := exec.Command(os.Getenv("REDIS_SERVER"), arguments...)
	command.Dir = dir
	if err := command.Start(); err != nil {
		return nil, err
	}
	s := &Server{address, redis.NewClient(&redis.Options{Addr: address}), command.Process}
	for end := time.Now().Add(Patience); ; time.Sleep(5 * time.Millisecond) {
		if err := s.Client.Ping(context.Background()).Err(); err == nil || time.Now().After(end) {
			return s, err
		}
	}
}

// End kills the server.
func (s *Server) End() {
	_ = s.Client.Close()
	_ = s.process.Kill()
	_, _ = s.process.Wait()
}

// WithModule starts a server that has loaded the module in REDIS_LOCK_MODULE.
func WithModule(dir string) (*Server, error) {
	module, err := filepath.Abs(os.Getenv("REDIS_LOCK_MODULE"))
	if err != nil {
		return nil, err
	}
	return Start(dir, "--loadmodule", module)
}

// Serve returns a server with the module that ends with the test.
func Serve(t *testing.T) *Server {
	t.Helper()
	s, err := WithModule(t.TempDir())
	Check(t, err)
	t.Cleanup(s.End)
	return s
}

// Main runs the tests of a package, with a server for its examples, whose address it sets.
func Main(m *testing.M, address *string) int {
	redis.SetLogger(quiet{})
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	s, err := WithModule(dir)
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
	Check(t, s.process.Signal(syscall.SIGSTOP))
	return func() { Check(t, s.process.Signal(syscall.SIGCONT)) }
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
	info, ok := s.Call(t, "LOCK.INFO", key).(map[any]any)
	if !ok {
		return 0
	}
	return info["waiters"].(int64)
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
