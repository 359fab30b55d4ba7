// Package dropin has what the packages in place of other lock libraries share: one Locks for each
// client, and a wait that old clients may take part in.
package dropin

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

// made has the Locks of each client that isn't collected, by its weak pointer.
var made sync.Map

// entry is the Locks of one client.
type entry struct {
	once  sync.Once
	locks *redislock.Locks
	err   error
}

// LocksOf returns the Locks of a client. It is the same one each time, because the libraries in place
// of which it is used make no connections of their own, so programs call their New often. It is
// closed when the client is collected: the caller must keep the client as long as it uses the Locks.
//
// A client of another type, such as one that embeds a *redis.Client, gets a new Locks each time.
// Owner is the object that the Locks ends with then.
func LocksOf[T any](client redis.UniversalClient, owner *T) (*redislock.Locks, error) {
	switch client := client.(type) {
	case *redis.Client:
		if client != nil {
			return shared(client, client)
		}
	case *redis.ClusterClient:
		if client != nil {
			return shared(client, client)
		}
	case nil:
	default:
		locks, err := redislock.New(client)
		if err == nil {
			runtime.AddCleanup(owner, closeLocks, locks)
		}
		return locks, err
	}
	return nil, &redislock.ArgumentError{Argument: "client", Reason: "a client of go-redis"}
}

func shared[T any](pointer *T, client redis.UniversalClient) (*redislock.Locks, error) {
	key := weak.Make(pointer)
	found, isFound := made.LoadOrStore(key, &entry{})
	e := found.(*entry)
	e.once.Do(func() { e.locks, e.err = redislock.New(client) })
	if !isFound && e.err == nil {
		runtime.AddCleanup(pointer, func(locks *redislock.Locks) {
			made.Delete(key)
			closeLocks(locks)
		}, e.locks)
	}
	return e.locks, e.err
}

func closeLocks(locks *redislock.Locks) { _ = locks.Close() }

// IsOldLock returns true for the error of a server at which an old client holds the key: its lock is
// a string.
func IsOldLock(err error) bool {
	var said redis.Error
	return errors.As(err, &said) && strings.HasPrefix(said.Error(), "WRONGTYPE")
}

// Acquire waits for a lock in the server's queue for this time, and returns redislock.ErrNotAcquired
// if somebody else had it until then. While an old client holds the key, it tries again after
// each pause.
func Acquire(ctx context.Context, lock *redislock.Lock, limit time.Duration, pause func() time.Duration) error {
	began := time.Now()
	for {
		left := max(0, limit-time.Since(began))
		_, err := lock.AcquireWithin(ctx, left)
		if !IsOldLock(err) {
			return err
		}
		rest := min(pause(), limit-time.Since(began))
		if rest <= 0 {
			return redislock.ErrNotAcquired
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return errors.Join(redislock.ErrNotAcquired, ctx.Err())
		}
	}
}

// RandomToken returns a token that nobody can guess, of 22 letters, digits, - and _.
func RandomToken() string {
	bits := make([]byte, 16)
	// It never fails: the program is ended if the system has no random bits.
	_, _ = rand.Read(bits)
	return base64.RawURLEncoding.EncodeToString(bits)
}
