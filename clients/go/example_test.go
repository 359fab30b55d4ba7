package redislock_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
)

// address is the address of the server in the examples.
var address string

func TestMain(m *testing.M) { testserver.Main(m, &address) }

func Example() {
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
