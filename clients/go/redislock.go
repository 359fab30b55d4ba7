// Package redislock has the locks of the redis-lock module for Go programs, on top of redigo.
//
// A Lock is one owner, so goroutines that exclude each other need a Lock each. Acquiring it again
// while it is held adds a hold.
package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

var (
	// ErrCancelled is the error of a wait that another client cancelled by LOCK.CANCEL.
	ErrCancelled = errors.New("redislock: the wait was given up")
	// ErrDeadlock is the error of a wait that would never end.
	ErrDeadlock = errors.New("redislock: the wait would never end")
	// ErrLost is the error of a lock that was lost before its release.
	ErrLost = errors.New("redislock: the lock was lost")
)

// Source provides connections: a redigo *redis.Pool, or a redisc *redisc.Cluster.
type Source interface {
	Get() redis.Conn
}

// Options has the keys of a lock and its settings. Only Keys is required.
type Options struct {
	// Keys are granted together or not at all. In a cluster they must be in one slot.
	Keys []string
	// Lease is the time after which the lock ends unless it is renewed. The renewals come at each
	// third of it. 30 s by default.
	Lease time.Duration
	// NoRenewal turns renewal off.
	NoRenewal bool
	// Token names the owner. 128 random bits by default.
	Token string
	// Shared makes the lock shared: shared holders admit each other.
	Shared bool
	// Limit is the most permits that shared holders take together.
	Limit int
	// Permits is the number of permits that this holder takes.
	Permits int
	// Session ties the lock to a connection of its own. The server releases it when that closes.
	Session bool
	// Keep is the time for which a place in the queue outlives its connection. 10 s by default.
	Keep time.Duration
	// OnLost is called once for each loss.
	OnLost func()
}

// Locks is a factory of locks.
type Locks struct {
	source Source
}

// New returns a factory of locks. They take connections from this source, one for each command or
// wait in progress.
func New(source Source) *Locks {
	return &Locks{source: source}
}

// Lock is one owner of a lock.
type Lock struct {
	source  Source
	options Options
	// The turn to acquire or release. A goroutine has it while its value is in this channel.
	turn chan struct{}

	mu      sync.Mutex
	current *grant
}

// Lock returns a lock. It sends nothing.
func (s *Locks) Lock(options Options) *Lock {
	if options.Lease == 0 {
		options.Lease = 30 * time.Second
	}
	if options.Keep == 0 {
		options.Keep = 10 * time.Second
	}
	if options.Token == "" {
		options.Token = randomToken()
	}
	return &Lock{source: s.source, options: options, turn: make(chan struct{}, 1)}
}

func randomToken() string {
	bits := make([]byte, 16)
	if _, err := rand.Read(bits); err != nil {
		panic("redislock: the system has no random bits: " + err.Error())
	}
	return hex.EncodeToString(bits)
}

// Acquire waits for the lock and returns the fence. When the context ends, it fails with the
// context's error.
func (l *Lock) Acquire(ctx context.Context) (int64, error) {
	fence, _, err := l.take(ctx, patience{waits: true})
	return fence, err
}

// AcquireWithin waits for the lock for at most wait. It returns false if that time passed without a
// grant.
func (l *Lock) AcquireWithin(ctx context.Context, wait time.Duration) (int64, bool, error) {
	return l.take(ctx, patience{waits: true, end: time.Now().Add(wait)})
}

// TryAcquire acquires the lock if it is free, and returns false if it isn't.
func (l *Lock) TryAcquire(ctx context.Context) (int64, bool, error) {
	return l.take(ctx, patience{end: time.Now().Add(answerWithin)})
}

// Do waits for the lock, calls work, and releases the lock. The context of work ends when the lock
// is lost. Do fails with ErrLost if the lock was lost and work didn't fail itself.
func (l *Lock) Do(ctx context.Context, work func(ctx context.Context, fence int64) error) error {
	fence, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := l.Lost()
	go func() {
		select {
		case <-lost:
			cancel()
		case <-inner.Done():
		}
	}()
	err = work(inner, fence)
	held, releaseErr := l.Release()
	switch {
	case err != nil:
		return err
	case releaseErr != nil:
		return releaseErr
	case !held:
		return ErrLost
	}
	return nil
}

// Release removes one hold, and releases the lock with the last one. It returns false if the lock
// had been lost or wasn't held. It tries until the lease ends.
func (l *Lock) Release() (bool, error) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	return l.leave()
}

// Extend sets the lease, which counts from now and is used by later renewals too. It returns false
// if the lock isn't held.
func (l *Lock) Extend(lease time.Duration) (bool, error) {
	held := l.grant()
	if !held.isHeld() {
		return false, nil
	}
	sent := time.Now()
	reply, _, err := l.askUntil(held.ends(), l.command("EXTEND", "PX", ms(lease)))
	if err != nil {
		return false, err
	}
	return l.extended(held, reply, sent, lease), nil
}

// Left returns the remaining lease on the server, or zero if the lock isn't held.
func (l *Lock) Left() (time.Duration, error) {
	least := time.Duration(-1)
	for _, key := range l.options.Keys {
		check := command{"LOCK.CHECK", []interface{}{key, l.options.Token}}
		left, _, err := l.askUntil(time.Now().Add(answerWithin), check)
		leftMs, err := redis.Int64(left, err)
		if err != nil {
			return 0, err
		}
		if left := time.Duration(leftMs) * time.Millisecond; least < 0 || left < least {
			least = left
		}
	}
	return least, nil
}

// Fence returns the fence of the latest grant, which is greater than the fence of every earlier
// grant. It returns 0 without a grant.
func (l *Lock) Fence() int64 {
	if held := l.grant(); held != nil {
		return held.fence
	}
	return 0
}

// Token returns the token, which names the owner.
func (l *Lock) Token() string {
	return l.options.Token
}

// IsLost returns true if the latest grant was lost: the server said so, or the lease has ended on
// the local monotonic clock.
func (l *Lock) IsLost() bool {
	return l.grant().isLost()
}

// Lost returns a channel that is closed when the latest grant is lost. It returns nil without a
// grant.
func (l *Lock) Lost() <-chan struct{} {
	if held := l.grant(); held != nil {
		return held.lost
	}
	return nil
}

func (l *Lock) grant() *grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}
