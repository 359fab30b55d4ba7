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
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	locks, err := redislock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	lock, err := locks.Lock("orders:42")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if _, err := lock.Acquire(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lock.IsHeld())
	if err := lock.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lock.IsHeld())
	// Output:
	// held: true
	// held: false
}

func ExampleLock_Do() {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	locks, err := redislock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	lock, err := locks.Lock("orders:42", redislock.WithLease(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	err = lock.Do(context.Background(), func(ctx context.Context, fence int64) error {
		// Pass ctx on: it ends if the lock is lost. Write with the fence.
		fmt.Println("mine:", fence > 0 && ctx.Err() == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// mine: true
	// <nil>
}

func ExampleLock_AcquireWithin() {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	locks, err := redislock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	ctx := context.Background()
	// Two permits: the third lock waits in vain. A Lock that nothing refers to would be released.
	var permits [3]*redislock.Lock
	for i := range permits {
		permit, err := locks.Lock("pool", redislock.WithLimit(2))
		if err != nil {
			log.Fatal(err)
		}
		permits[i] = permit
		_, err = permit.AcquireWithin(ctx, time.Second)
		switch {
		case errors.Is(err, redislock.ErrNotAcquired):
			fmt.Println("no permit")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("a permit")
		}
	}
	for _, permit := range permits[:2] {
		if err := permit.Release(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// a permit
	// a permit
	// no permit
}

func ExampleLock_Locker() {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	locks, err := redislock.New(client)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	lock, err := locks.Lock("orders:42")
	if err != nil {
		log.Fatal(err)
	}
	mutex := lock.Locker()
	mutex.Lock()
	defer mutex.Unlock()
	fmt.Println("mine")
	// Output: mine
}
