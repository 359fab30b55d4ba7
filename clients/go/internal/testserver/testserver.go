// Package testserver starts servers with the module, for tests.
package testserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// Patience is how long a test waits for what must come.
const Patience = 60 * time.Second

// Late is how much later than its time a call may return on a machine that is busy. The conformance
// suite measures the 250 ms of the contract.
const Late = 2 * time.Second

// The input and the output of the program in REDIS_LOCK_RIG.
var (
	orders   io.WriteCloser
	replies  *bufio.Reader
	ordering sync.Mutex
)

// Main runs the tests of a package, with a server for its examples, whose address it sets. It fails
// if a server has crashed.
func Main(m *testing.M, address *string) {
	// go-redis would log each connection that fails.
	logging.Disable()
	rig := exec.Command(os.Getenv("REDIS_LOCK_RIG"), "serve")
	rig.Stderr = os.Stderr
	orders = must(rig.StdinPipe())
	replies = bufio.NewReader(must(rig.StdoutPipe()))
	must(rig, rig.Start())
	*address = order("start")
	status := m.Run()
	must(rig, errors.Join(orders.Close(), rig.Wait()))
	os.Exit(status)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// order sends an order of tests/rig/src/main.rs, and returns the address of the port in its reply.
func order(words string) string {
	ordering.Lock()
	defer ordering.Unlock()
	must(fmt.Fprintln(orders, words))
	status, port, _ := strings.Cut(strings.TrimSpace(must(replies.ReadString('\n'))), " ")
	if status != "ok" {
		panic(words + ": " + status)
	}
	return "127.0.0.1:" + port
}

// Server is a running server.
type Server struct {
	Address string
	Client  *redis.Client
}

// Serve returns a server with the module.
func Serve(t *testing.T) *Server { return ServeBy(t, "start") }

// ServeBy returns a server that an order starts. It ends with the test.
func ServeBy(t *testing.T, words string) *Server {
	address := order(words)
	s := &Server{address, redis.NewClient(&redis.Options{Addr: address})}
	t.Cleanup(func() {
		_ = s.Client.Close()
		s.order("end ")
	})
	return s
}

func (s *Server) order(verb string) { order(verb + strings.TrimPrefix(s.Address, "127.0.0.1:")) }

// Stop stops the server until the returned function is called.
func (s *Server) Stop() (goOn func()) {
	s.order("freeze ")
	return func() { s.order("thaw ") }
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

// UntilFree waits until nobody holds the locks or waits for them.
func (s *Server) UntilFree(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		Until(t, key+" is free", func() bool { return s.IsFree(t, key) })
	}
}

// UntilWaiting waits until so many wait for the lock.
func (s *Server) UntilWaiting(t *testing.T, key string, count int64) {
	t.Helper()
	Until(t, fmt.Sprint("waiting for ", key, ": ", count), func() bool {
		info, _ := s.Call(t, "LOCK.INFO", key).(map[any]any)
		return info["waiters"] == count || count == 0 && info == nil
	})
}

// Number returns a number of a section of INFO.
func (s *Server) Number(t *testing.T, section, name string) int {
	t.Helper()
	number, err := strconv.Atoi(s.Client.InfoMap(context.Background()).Item(section, name))
	Check(t, err)
	return number
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

// ExpectAs returns an error of this type, or ends the test.
func ExpectAs[E error](t *testing.T, err error) (found E) {
	t.Helper()
	if !errors.As(err, &found) {
		t.Fatalf("%v instead of %T", err, found)
	}
	return found
}

// Equal checks what was found.
func Equal(t *testing.T, what string, found, expected any) {
	t.Helper()
	if !reflect.DeepEqual(found, expected) {
		t.Errorf("%s: %v instead of %v", what, found, expected)
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

// Receive returns the next value of a channel.
func Receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(Patience):
		t.Fatalf("nothing within %v", Patience)
	}
	return value
}

// Takes checks how long a call takes.
func Takes(t *testing.T, what string, expected time.Duration, call func()) {
	t.Helper()
	began := time.Now()
	call()
	if took := time.Since(began); took < expected-Late/10 || took > expected+Late {
		t.Errorf("%s took %v instead of %v", what, took, expected)
	}
}

// TakeTogether makes calls at once, and checks the error of each, and how long it takes.
func TakeTogether(
	t *testing.T, isRight func(*testing.T, error), calls map[time.Duration]func() error,
) {
	t.Helper()
	all := slices.Collect(maps.Keys(calls))
	Together(len(all), func(number int) {
		expected := all[number]
		Takes(t, "a call", expected, func() { isRight(t, calls[expected]()) })
	})
}

// Together calls something in many goroutines, and waits for them.
func Together(count int, call func(number int)) {
	ended := make(chan bool, count)
	for number := range count {
		go func() {
			defer func() { ended <- true }()
			call(number)
		}()
	}
	for range count {
		<-ended
	}
}
