package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"redislock"
)

const patience = 15 * time.Second

// server starts a server for one test.
func server(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	address := listener.Addr().String()
	check(t, listener.Close())
	_, port, err := net.SplitHostPort(address)
	check(t, err)
	module, err := filepath.Abs(os.Getenv("REDIS_LOCK_MODULE"))
	check(t, err)
	process := exec.Command(os.Getenv("REDIS_SERVER"), "--port", port, "--save", "", "--loadmodule", module)
	process.Dir = t.TempDir()
	check(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	until(t, "the server answers", func() bool {
		conn, err := redis.Dial("tcp", address)
		if err != nil {
			return false
		}
		defer conn.Close()
		_, err = conn.Do("PING")
		return err == nil
	})
	return address
}

func pool(address string) *redis.Pool {
	return &redis.Pool{MaxIdle: 3, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
}

func call(t *testing.T, pool *redis.Pool, name string, args ...interface{}) interface{} {
	t.Helper()
	conn := pool.Get()
	defer conn.Close()
	reply, err := conn.Do(name, args...)
	check(t, err)
	return reply
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func TestDoHoldsTheLockAndReleasesIt(t *testing.T) {
	pool := pool(server(t))
	lock := redislock.New(pool).Lock(redislock.Options{Keys: []string{"k"}})
	failure := errors.New("of the work")
	for _, outcome := range []error{nil, failure} {
		err := lock.Do(context.Background(), func(ctx context.Context, fence int64) error {
			if call(t, pool, "LOCK.CHECK", "k", lock.Token()).(int64) == 0 || fence != lock.Fence() {
				t.Error("the lock isn't held")
			}
			return outcome
		})
		if err != outcome {
			t.Errorf("%v instead of %v", err, outcome)
		}
		if call(t, pool, "LOCK.INFO", "k") != nil {
			t.Error("the lock isn't released")
		}
	}
}

// slowConn is a connection with a delay before each command.
type slowConn struct {
	redis.ConnWithTimeout
	delay time.Duration
}

func (c slowConn) DoWithTimeout(timeout time.Duration, name string, args ...interface{}) (interface{}, error) {
	time.Sleep(c.delay)
	return c.ConnWithTimeout.DoWithTimeout(timeout, name, args...)
}

func TestASlowWayToTheServerIsNoStandstill(t *testing.T) {
	address := server(t)
	pool := &redis.Pool{Dial: func() (redis.Conn, error) {
		conn, err := redis.Dial("tcp", address)
		if err != nil {
			return nil, err
		}
		return slowConn{conn.(redis.ConnWithTimeout), 300 * time.Millisecond}, nil
	}}
	lock := redislock.New(pool).Lock(redislock.Options{Keys: []string{"k"}, Lease: 2 * time.Second})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := lock.Acquire(ctx)
	check(t, err)
}

func TestDoEndsItsContextWithTheLock(t *testing.T) {
	pool := pool(server(t))
	lock := redislock.New(pool).Lock(redislock.Options{Keys: []string{"k"}, Lease: 300 * time.Millisecond})
	err := lock.Do(context.Background(), func(ctx context.Context, _ int64) error {
		call(t, pool, "DEL", "k")
		select {
		case <-ctx.Done():
		case <-time.After(patience):
			t.Error("the context doesn't end")
		}
		return nil
	})
	if err != redislock.ErrLost {
		t.Errorf("%v instead of %v", err, redislock.ErrLost)
	}
}

func TestAnEndedContextEndsTheWait(t *testing.T) {
	pool := pool(server(t))
	locks := redislock.New(pool)
	_, err := locks.Lock(redislock.Options{Keys: []string{"k"}}).Acquire(context.Background())
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := locks.Lock(redislock.Options{Keys: []string{"k"}}).Acquire(ctx)
		failed <- err
	}()
	until(t, "it waits", func() bool { return waiters(t, pool, "k") == 1 })
	cancel()
	select {
	case err := <-failed:
		if err != context.Canceled {
			t.Errorf("%v instead of %v", err, context.Canceled)
		}
	case <-time.After(patience):
		t.Error("the wait continues")
	}
	if waiters(t, pool, "k") != 0 {
		t.Error("the waiter is still in the queue")
	}
}

func TestATryAtAServerThatIsGoneFailsAfterASecond(t *testing.T) {
	dial := func() (redis.Conn, error) { return nil, errors.New("nobody is there") }
	lock := redislock.New(&redis.Pool{Dial: dial}).Lock(redislock.Options{Keys: []string{"k"}})
	began := time.Now()
	if _, _, err := lock.TryAcquire(context.Background()); err == nil {
		t.Error("the try didn't fail")
	}
	if after := time.Since(began); after < time.Second || after > 5*time.Second {
		t.Errorf("after %v", after)
	}
}

// waiters returns the number of waiters for a key that is held.
func waiters(t *testing.T, pool *redis.Pool, key string) int64 {
	t.Helper()
	info, err := redis.Values(call(t, pool, "LOCK.INFO", key), nil)
	check(t, err)
	for i, name := range info {
		if text, ok := name.([]byte); ok && string(text) == "waiters" {
			return info[i+1].(int64)
		}
	}
	t.Fatal("the reply has no waiters")
	return 0
}

// blocks returns the code blocks of a language, in their order.
func blocks(document, language string) []string {
	var found []string
	for _, rest := range strings.Split(document, "```"+language+"\n")[1:] {
		found = append(found, strings.SplitN(rest, "```", 2)[0])
	}
	return found
}

func TestAFirstLockOfTheReadmeIsWaitedFor(t *testing.T) {
	text, err := os.ReadFile("README.md")
	check(t, err)
	here, err := os.Getwd()
	check(t, err)
	here, err = filepath.EvalSymlinks(here)
	check(t, err)
	address := server(t)
	folder := t.TempDir()
	check(t, os.Symlink(filepath.Join(here, "../.."), filepath.Join(folder, "redis-lock")))
	source := strings.Replace(blocks(string(text), "go")[0], "127.0.0.1:6379", address, 1)
	commands := blocks(string(text), "sh")
	shell(t, folder, commands[1])
	project := filepath.Join(folder, "first-lock")
	check(t, os.WriteFile(filepath.Join(project, "main.go"), []byte(source), 0o644))
	shell(t, project, commands[2])

	pool := pool(address)
	start := func() chan string {
		said := make(chan string, 1)
		go func() {
			output, err := exec.Command(filepath.Join(project, "first-lock")).CombinedOutput()
			said <- fmt.Sprint(string(output), err)
		}()
		return said
	}
	// Held until both programs wait, however long the second program takes to start.
	call(t, pool, "LOCK.ACQUIRE", "orders:42", "other", "PX", 600000)
	first := start()
	until(t, "the first one waits", func() bool { return waiters(t, pool, "orders:42") == 1 })
	second := start()
	until(t, "the second one waits", func() bool { return waiters(t, pool, "orders:42") == 2 })
	call(t, pool, "LOCK.RELEASE", "orders:42", "other")
	fences := [2]int64{}
	for i, said := range []string{<-first, <-second} {
		_, err := fmt.Sscanf(said, "got it, fence %d\nreleased: true\n<nil>", &fences[i])
		if err != nil {
			t.Fatalf("%v: %q", err, said)
		}
	}
	if fences[1] <= fences[0] {
		t.Errorf("fences %v", fences)
	}
}

func shell(t *testing.T, folder, script string) {
	t.Helper()
	command := exec.Command("sh", "-euc", script)
	command.Dir = folder
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}
