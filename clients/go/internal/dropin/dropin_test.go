package dropin_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/dropin"
	"github.com/redis-lock/redis-lock/clients/go/internal/testserver"
)

var address string

func TestMain(m *testing.M) { os.Exit(testserver.Main(m, &address)) }

type owner struct{ locks *redislock.Locks }

func locksOf(t *testing.T, client redis.UniversalClient) *owner {
	t.Helper()
	o := &owner{}
	locks, err := dropin.LocksOf(client, o)
	testserver.Check(t, err)
	o.locks = locks
	return o
}

// wait makes connections, one of them for notifications, because it waits in vain.
func (o *owner) wait(t *testing.T, s *testserver.Server) {
	t.Helper()
	s.Call(t, "LOCK.ACQUIRE", "k", "other", "PX", 600_000)
	lock, err := o.locks.Lock("k")
	testserver.Check(t, err)
	if _, err := lock.AcquireWithin(context.Background(), time.Second); !errors.Is(err, redislock.ErrNotAcquired) {
		t.Errorf("%v instead of ErrNotAcquired", err)
	}
}

// connections returns how many there are except that of the test.
func connections(t *testing.T, s *testserver.Server) int {
	t.Helper()
	return strings.Count(s.Call(t, "CLIENT", "LIST").(string), "addr=") / 2
}

func TestAClientHasOneLocks(t *testing.T) {
	s := testserver.Serve(t)
	other := redis.NewClient(s.Client.Options())
	defer other.Close()
	first := locksOf(t, s.Client)
	if locksOf(t, s.Client).locks != first.locks || locksOf(t, other).locks == first.locks {
		t.Error("not one for each client")
	}
	runtime.KeepAlive(other)
}

type embedding struct{ *redis.Client }

func TestTheLocksEndWithTheClientOrTheOwner(t *testing.T) {
	s := testserver.Serve(t)
	before := connections(t, s)
	clients := map[string]func() redis.UniversalClient{
		"client":  func() redis.UniversalClient { return redis.NewClient(s.Client.Options()) },
		"wrapper": func() redis.UniversalClient { return embedding{redis.NewClient(s.Client.Options())} },
	}
	for name, open := range clients {
		func() {
			client := open()
			o := locksOf(t, client)
			o.wait(t, s)
			runtime.GC()
			o.wait(t, s)
			if connections(t, s) <= before {
				t.Errorf("%s: no connection", name)
			}
			runtime.KeepAlive(o)
			runtime.KeepAlive(client)
		}()
		testserver.Until(t, name+": its connections are closed", func() bool {
			runtime.GC()
			return connections(t, s) == before
		})
	}
}
