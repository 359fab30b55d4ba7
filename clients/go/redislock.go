// Package redislock has the locks of the redis-lock module for Go programs, on top of redigo.
//
// A Lock is one owner: goroutines that are to wait for each other need a Lock each. Acquired again while it is
// held, it counts its holds.
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
	// ErrCancelled is the end of a wait that somebody else gave up by LOCK.CANCEL.
	ErrCancelled = errors.New("redislock: the wait was given up")
	// ErrDeadlock is a wait that would never end.
	ErrDeadlock = errors.New("redislock: the wait would never end")
	// ErrLost is a lock that was lost before it was released.
	ErrLost = errors.New("redislock: the lock was lost")
)

// Source is where connections come from: a redigo *redis.Pool, or a redisc *redisc.Cluster.
type Source interface {
	Get() redis.Conn
}

// Options say what is locked, and how. Only Keys has to be there.
type Options struct {
	// Keys that are locked all or none. In a cluster they have to be in one slot.
	Keys []string
	// Lease is for how long the lock is granted; it is renewed at each third. 30 s without.
	Lease time.Duration
	// NoRenewal lets the lease end when it ends.
	NoRenewal bool
	// Token names the owner; 128 random bits without.
	Token string
	// Shared holders admit each other.
	Shared bool
	// Limit is how many shared holders there may be at most.
	Limit int
	// Permits is as how many of them this one counts.
	Permits int
	// Session ties the lock to a connection of its own: the server frees it as that is closed.
	Session bool
	// Keep is how long a place in the queue outlives its connection. 10 s without.
	Keep time.Duration
	// OnLost is called once for each loss.
	OnLost func()
}

// Locks makes locks.
type Locks struct {
	source Source
}

// New makes locks that take connections from this source, as many as commands and waits are under way at once.
func New(source Source) *Locks {
	return &Locks{source: source}
}

// Lock is one owner of a lock.
type Lock struct {
	source  Source
	options Options
	// One goroutine acquires or releases at a time: whoever has put something in here.
	turn chan struct{}

	mu      sync.Mutex
	current *grant
}

// Lock makes a lock. Nothing is sent yet.
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

// Acquire waits for the lock until the context ends, and then fails with the context's error. It gives the fence.
func (l *Lock) Acquire(ctx context.Context) (int64, error) {
	fence, _, err := l.take(ctx, patience{waits: true})
	return fence, err
}

// AcquireWithin waits so long; false if that wasn't enough.
func (l *Lock) AcquireWithin(ctx context.Context, wait time.Duration) (int64, bool, error) {
	return l.take(ctx, patience{waits: true, end: time.Now().Add(wait)})
}

// TryAcquire takes the lock if it is free; false if it isn't.
func (l *Lock) TryAcquire(ctx context.Context) (int64, bool, error) {
	return l.take(ctx, patience{end: time.Now().Add(answerWithin)})
}

// Do waits for the lock, and calls the function with a context that ends when the lock is lost, and with the
// fence. Then it releases the lock. It fails with ErrLost if the lock was lost and the function didn't fail itself.
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

// Release takes one hold off, and with the last one releases the lock. False: it had been lost, or wasn't
// held. It is tried until the lease is over.
func (l *Lock) Release() (bool, error) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	return l.leave()
}

// Extend sets the lease, from now on and for renewals. False: the lock isn't held.
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

// Left is what is left of the lease, as the server says: zero if the lock isn't held.
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

// Fence is the number of the latest grant, greater than that of each one before it; 0 without a grant.
func (l *Lock) Fence() int64 {
	if held := l.grant(); held != nil {
		return held.fence
	}
	return 0
}

// Token names the owner.
func (l *Lock) Token() string {
	return l.options.Token
}

// IsLost tells whether the latest grant was lost: the server said so, or the lease is over by this machine's clock.
func (l *Lock) IsLost() bool {
	return l.grant().isLost()
}

// Lost is closed when the latest grant is lost. Without a grant it is nil.
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
