// Package dropin has what the packages in place of other lock libraries share: one Locks for each
// client, and a wait that old clients may take part in.
package dropin

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

// made has the Locks that are in use, by the options of their clients. These are the same for all
// that embed one client.
var made = struct {
	sync.Mutex
	locks map[any]weak.Pointer[redislock.Locks]
}{locks: map[any]weak.Pointer[redislock.Locks]{}}

// LocksOf returns the Locks of a client, as long as anything uses it the same one: the libraries in
// place of which it is used hold nothing that must be closed, so programs call their New often.
func LocksOf(client any) (*redislock.Locks, error) {
	universal, _ := client.(redis.UniversalClient)
	key := keyOf(client)
	if key == nil {
		universal = nil
	}
	made.Lock()
	defer made.Unlock()
	if locks := made.locks[key].Value(); locks != nil {
		return locks, nil
	}
	locks, err := redislock.New(universal)
	if err != nil {
		return nil, err
	}
	made.locks[key] = weak.Make(locks)
	runtime.AddCleanup(locks, forget, key)
	return locks, nil
}

// keyOf returns what clients with the same connections have in common, or nil if there is no such
// thing.
func keyOf(client any) any {
	if pointer := reflect.ValueOf(client); pointer.Kind() == reflect.Pointer && pointer.IsNil() {
		return nil
	}
	switch client := client.(type) {
	case interface{ Options() *redis.Options }:
		return weak.Make(client.Options())
	case interface{ Options() *redis.ClusterOptions }:
		return weak.Make(client.Options())
	}
	return nil
}

// forget drops a Locks that was collected, unless there is a new one.
func forget(key any) {
	made.Lock()
	defer made.Unlock()
	if made.locks[key].Value() == nil {
		delete(made.locks, key)
	}
}

// Options returns the options of a lock that ends with its lease, and is extended for ever if need
// be.
func Options(lease time.Duration) []redislock.Option {
	return []redislock.Option{
		redislock.WithLease(lease), redislock.WithMargin(0), redislock.WithoutRenewal(),
		redislock.WithMaxHold(redislock.Unlimited),
	}
}

// IsGone returns true if the server said that the lock isn't held any more.
func IsGone(err error) bool {
	return errors.Is(err, redislock.ErrLost) || errors.Is(err, redislock.ErrNotHeld) || IsOldLock(err)
}

// IsOldLock returns true for the error of a server at which an old client holds the key: its lock
// is a string.
func IsOldLock(err error) bool {
	var said redis.Error
	return errors.As(err, &said) && strings.HasPrefix(said.Error(), "WRONGTYPE")
}

// Acquire waits for a lock in the server's queue for this time, and returns
// redislock.ErrNotAcquired if somebody else had it until then. While an old client holds the key,
// it tries again after each pause.
func Acquire(
	ctx context.Context, lock *redislock.Lock, limit time.Duration, pause func() time.Duration,
) (*redislock.Grant, error) {
	until := time.Now().Add(limit)
	for {
		grant, err := lock.AcquireWithin(ctx, max(0, time.Until(until)))
		if !IsOldLock(err) {
			return grant, err
		}
		rest := min(pause(), time.Until(until))
		if rest <= 0 {
			return nil, redislock.ErrNotAcquired
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return nil, errors.Join(redislock.ErrNotAcquired, ctx.Err())
		}
	}
}
