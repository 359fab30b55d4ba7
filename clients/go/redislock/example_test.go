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

	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
	"github.com/redis-lock/redis-lock/clients/go/redislock"
)

// address is the address of the server in the examples.
var address string

func TestMain(m *testing.M) { os.Exit(testserver.Main(m, &address)) }

func Example() {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	locker := redislock.New(client)
	ctx := context.Background()
	lock, err := locker.Obtain(ctx, "orders:42", 10*time.Second, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		fmt.Println("somebody else has it")
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("mine")
	fmt.Println(lock.Release(ctx))
	// Output:
	// mine
	// <nil>
}
