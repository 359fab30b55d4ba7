// Goroutines that acquire one lock with short limits, by redsync and by this project's client in
// turns.
//
// Called as `hot ADDRESS SECONDS ROUNDS GOROUTINES...`. Each goroutine acquires the lock again and
// again, with a random limit up to 300 ms, holds it for 1 ms, and releases it. Prints a line for
// each round of each library: the grants, the times of a release, how late the latest call
// returned, and the errors that are neither a refusal nor an outage.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

const (
	mostWait = 300 * time.Millisecond
	held     = time.Millisecond
	lease    = 10 * time.Second
)

var (
	errRefused     = errors.New("somebody else has it")
	errUnavailable = errors.New("no server")
)

// acquire waits for the lock until the context ends, and returns the function that releases it.
type acquire func(ctx context.Context) (release func() error, err error)

func main() {
	numbers := make([]int, 0, len(os.Args))
	for _, argument := range os.Args[2:] {
		number, err := strconv.Atoi(argument)
		if err != nil {
			log.Fatal(err)
		}
		numbers = append(numbers, number)
	}
	seconds, rounds, counts := numbers[0], numbers[1], numbers[2:]
	for _, count := range counts {
		for round := range rounds {
			libraries := []struct {
				name string
				of   func(*redis.Client, string) acquire
			}{{"redsync", redsyncs}, {"redislock", ours}}
			for _, library := range libraries {
				client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
				key := fmt.Sprintf("hot:%s:%d:%d", library.name, count, round)
				h := heat{until: time.Now().Add(time.Duration(seconds) * time.Second)}
				h.run(library.of(client, key), count)
				fmt.Printf("%-9s %4d goroutines: %v\n", library.name, count, &h)
				_ = client.Close()
			}
		}
	}
}

// heat is what the goroutines have counted.
type heat struct {
	until time.Time

	mu       sync.Mutex
	releases []time.Duration
	latest   time.Duration
	outages  int
	failures map[string]int
}

func (h *heat) run(once acquire, count int) {
	h.failures = map[string]int{}
	var all sync.WaitGroup
	for range count {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Now().Before(h.until) {
				h.once(once)
			}
		}()
	}
	all.Wait()
}

func (h *heat) once(acquire acquire) {
	limit := rand.N(mostWait)
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	release, err := acquire(ctx)
	cancel()
	h.acquired(time.Since(began)-limit, err)
	if err != nil {
		return
	}
	time.Sleep(held)
	began = time.Now()
	err = release()
	h.released(time.Since(began), err)
}

func (h *heat) acquired(late time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest = max(h.latest, late)
	switch {
	case errors.Is(err, errUnavailable):
		h.outages++
	case err != nil && !errors.Is(err, errRefused):
		h.failures[err.Error()]++
	}
}

func (h *heat) released(took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.failures["release: "+err.Error()]++
		return
	}
	h.releases = append(h.releases, took)
}

func (h *heat) String() string {
	slices.Sort(h.releases)
	at := func(part float64) time.Duration {
		if len(h.releases) == 0 {
			return 0
		}
		return h.releases[int(float64(len(h.releases)-1)*part)].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf(
		"%5d grants, release p50 %v p99 %v, latest return %v, %d outages, failures %v",
		len(h.releases), at(0.5), at(0.99), h.latest.Round(time.Millisecond), h.outages, h.failures)
}

// redsyncs is redsync on one server, which polls after 50 to 250 ms until the context ends.
func redsyncs(client *redis.Client, key string) acquire {
	pool := redsync.New(goredis.NewPool(client))
	return func(ctx context.Context) (func() error, error) {
		mutex := pool.NewMutex(key, redsync.WithExpiry(lease), redsync.WithTries(math.MaxInt32))
		err := mutex.LockContext(ctx)
		if err != nil && ctx.Err() != nil {
			return nil, errRefused
		}
		return func() error {
			isHeld, err := mutex.Unlock()
			if err == nil && !isHeld {
				err = errors.New("not released")
			}
			return err
		}, err
	}
}

// ours is this project's client, which waits in the server's queue.
func ours(client *redis.Client, key string) acquire {
	locks, err := redislock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	lock, err := locks.Lock(key, redislock.WithLease(lease))
	if err != nil {
		log.Fatal(err)
	}
	return func(ctx context.Context) (func() error, error) {
		grant, err := lock.Acquire(ctx)
		switch {
		case errors.Is(err, redislock.ErrUnavailable):
			return nil, errUnavailable
		case errors.Is(err, redislock.ErrNotAcquired), errors.Is(err, context.DeadlineExceeded):
			return nil, errRefused
		case err != nil:
			return nil, err
		}
		return func() error { return grant.Release(context.Background()) }, nil
	}
}
