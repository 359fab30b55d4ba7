package redsync_test

import (
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
	"github.com/redis-lock/redis-lock/clients/go/redsync"
)

// address is the address of the server in the examples.
var address string

func TestMain(m *testing.M) { os.Exit(testserver.Main(m, &address)) }

func Example() {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	rs := redsync.New(client)
	mutex := rs.NewMutex("orders:42")
	if err := mutex.Lock(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("mine")
	ok, err := mutex.Unlock()
	fmt.Println(ok, err)
	// Output:
	// mine
	// true <nil>
}
