// Package redislock has the locks of the redis-lock module for programs on go-redis.
//
// New makes Locks from a client of go-redis: of one server, of Sentinel, or of a cluster. Locks.Lock
// makes a Lock, which goroutines can share like a sync.Mutex: one of them has it at a time.
//
// Every call takes a context and returns within 250 ms of its end, whatever the server does. A
// call that doesn't wait for the lock also returns within the command timeout, 1 s by default. What
// remains to be cleaned up is done in the background.
package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// Outcome says how a wait ended.
type Outcome string

// The outcomes of a wait.
const (
	Granted     Outcome = "granted"
	NotAcquired Outcome = "not acquired"
	Cancelled   Outcome = "cancelled"
	Failed      Outcome = "failed"
)

// Observer has functions that Locks call, for logs and metrics. Each may be nil. They must return
// soon; a panic in one is logged with log/slog.
type Observer struct {
	// Waited is called at the end of each acquire that didn't get the lock at once.
	Waited func(lock *Lock, waited time.Duration, outcome Outcome)
	// Granted is called for each grant.
	Granted func(lock *Lock)
	// Lost is called once for each loss.
	Lost func(lock *Lock)
	// Unavailable is called once for each outage that no caller gets as an error: of a wait without
	// a limit, of a renewal, and of a cleanup. Default: a warning of log/slog.
	Unavailable func(err error)
}

// LocksOption is an option of New.
type LocksOption func(*Locks)

// WithCommandTimeout sets the longest time of every call that doesn't wait for a lock, including
// connecting, and of each attempt in a wait. Default: 1 s.
func WithCommandTimeout(d time.Duration) LocksOption {
	return func(l *Locks) { l.timeout = d }
}

// WithObserver sets the observer.
func WithObserver(observer Observer) LocksOption {
	return func(l *Locks) { l.observer = observer }
}

// Locks makes locks. It is safe for concurrent use.
type Locks struct {
	link     *link
	timeout  time.Duration
	observer Observer

	mu   sync.Mutex
	held map[*owner]*grant
}

// New returns a maker of locks on the servers of a *redis.Client (also one of NewFailoverClient) or
// a *redis.ClusterClient. It sends nothing.
//
// Locks has connections of its own, made with the client's address, dialer, TLS and credentials:
// at most ten for commands, one for notifications, one for each session, and on one server at most 28
// for waits. So neither the size of the client's pool nor its timeouts and retries matter. It fails with
// an *ArgumentError.
func New(client redis.UniversalClient, options ...LocksOption) (*Locks, error) {
	l := &Locks{timeout: time.Second, held: map[*owner]*grant{}}
	for _, option := range options {
		option(l)
	}
	if l.timeout <= 0 {
		return nil, &ArgumentError{"command timeout", "greater than 0"}
	}
	var err error
	l.link, err = newLink(client, l.timeout)
	return l, err
}

// Lock returns a lock on one key. It sends nothing. It fails with an *ArgumentError.
func (l *Locks) Lock(key string, options ...Option) (*Lock, error) {
	return l.LockAll([]string{key}, options...)
}

// LockAll returns a lock on several keys, which are granted together or not at all. On a cluster,
// they must be in one slot. It sends nothing. It fails with an *ArgumentError.
func (l *Locks) LockAll(keys []string, options ...Option) (*Lock, error) {
	settings, err := newSettings(keys, options)
	if err != nil {
		return nil, err
	}
	o := &owner{
		settings: settings,
		locks:    l,
		keys:     append([]string(nil), keys...),
		channel:  l.link.channel(keys[0]),
		turn:     make(chan struct{}, 1),
		lost:     make(chan struct{}),
	}
	lock := &Lock{o}
	o.lock = weak.Make(lock)
	runtime.AddCleanup(lock, (*owner).abandon, o)
	return lock, nil
}

// ReleaseAll releases all holds of every lock that is held, and returns how many locks were still
// held. If a release fails, the others are released nevertheless.
func (l *Locks) ReleaseAll(ctx context.Context) (int, error) {
	l.mu.Lock()
	owners := make([]*owner, 0, len(l.held))
	for o := range l.held {
		owners = append(owners, o)
	}
	l.mu.Unlock()
	failures := make(chan error)
	for _, o := range owners {
		go func() { failures <- o.release(ctx, true) }()
	}
	count := 0
	var failed error
	for range owners {
		switch err := <-failures; {
		case err == nil:
			count++
		case !errors.Is(err, ErrLost) && !errors.Is(err, ErrNotHeld):
			failed = errors.Join(failed, err)
		}
	}
	return count, failed
}

// Close closes the connections. It doesn't release locks, except those of sessions: call ReleaseAll
// before. Calls after it fail with redis.ErrClosed.
func (l *Locks) Close() error {
	l.mu.Lock()
	for _, g := range l.held {
		g.close()
	}
	l.mu.Unlock()
	return l.link.close()
}

// String returns the address of the servers.
func (l *Locks) String() string {
	return "redislock.Locks(" + l.link.address + ")"
}

// report passes an outage to the observer.
func (l *Locks) report(err error) {
	if l.observer.Unavailable == nil {
		slog.Warn("redislock: no server", "error", err)
		return
	}
	protect(func() { l.observer.Unavailable(err) })
}

// protect calls a function of the program, and logs its panic.
func protect(hook func()) {
	defer func() {
		if caught := recover(); caught != nil {
			slog.Error("redislock: an observer panicked", "panic", caught)
		}
	}()
	hook()
}

func randomText() string {
	bits := make([]byte, 16)
	// It never fails: the program is ended if the system has no random bits.
	_, _ = rand.Read(bits)
	return hex.EncodeToString(bits)
}
