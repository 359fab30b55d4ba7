package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
)

// address is the address of the server in the examples.
var address string

func TestMain(m *testing.M) { os.Exit(testserver.Main(m, &address)) }

func Example() {
	locks, err := redislock.New(redis.NewClient(&redis.Options{Addr: address}))
	if err != nil {
		log.Fatal(err)
	}
	lock, err := locks.Lock("orders:42")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	grant, err := lock.Acquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("mine:", grant.Fence() > 0)
	fmt.Println(grant.Release(ctx))
	// Output:
	// mine: true
	// <nil>
}

func ExampleLock_Do() {
	locks, err := redislock.New(redis.NewClient(&redis.Options{Addr: address}))
	if err != nil {
		log.Fatal(err)
	}
	lock, err := locks.Lock("orders:42", redislock.WithLease(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	err = lock.Do(context.Background(), func(ctx context.Context, grant *redislock.Grant) error {
		// Pass ctx on: it ends if the lock is lost. Write with the fence.
		fmt.Println("mine:", grant.Fence() > 0 && ctx.Err() == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// mine: true
	// <nil>
}

func ExampleLock_AcquireWithin() {
	locks, err := redislock.New(redis.NewClient(&redis.Options{Addr: address}))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	// Two permits: the third acquire waits in vain.
	permit, err := locks.Lock("pool", redislock.WithLimit(2))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		grant, err := permit.AcquireWithin(ctx, time.Second)
		switch {
		case errors.Is(err, redislock.ErrNotAcquired):
			fmt.Println("no permit")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("a permit")
			defer grant.Release(ctx)
		}
	}
	// Output:
	// a permit
	// a permit
	// no permit
}
