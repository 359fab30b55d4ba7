// Package redislock has the locks of the redis-lock module for programs on go-redis.
//
// New makes Locks from a client of go-redis: of one server, of Sentinel, or of a cluster.
// Locks.Lock makes a Lock, which has no state. Each acquire of it returns a Grant, which holds the
// lock.
//
// Every call takes a context and returns within 250 ms of its end, whatever the server does. A
// call that doesn't wait for the lock also returns within the command timeout, 1 s by default. What
// remains to be cleaned up is done in the background.
package redislock

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redis-lock/redis-lock/clients/go/internal/shape"
)

// Locks makes locks. It is safe for concurrent use.
type Locks struct {
	commands *commands
}

// LocksOption is an option of New.
type LocksOption func(*commands)

// WithCommandTimeout sets the longest time of every call that doesn't wait for a lock, including
// connecting and sending again. Default: 1 s.
func WithCommandTimeout(d time.Duration) LocksOption { return func(c *commands) { c.timeout = d } }

// WithObserver sets the observer.
func WithObserver(observer Observer) LocksOption {
	return func(c *commands) { c.observer = observer }
}

// New returns a maker of locks on the servers of a *redis.Client (also one of NewFailoverClient) or
// of a *redis.ClusterClient, or of what embeds one. It sends nothing. It fails with an
// *ArgumentError.
//
// Locks uses the client's connections. Other clients of the same settings have those of waits and
// sessions, and in a cluster all. They close with the session, or when the Locks is closed or
// collected.
func New(client redis.UniversalClient, options ...LocksOption) (*Locks, error) {
	c := &commands{
		timeout: time.Second, crowds: map[string]*crowd{}, held: map[*hold]struct{}{},
		down: map[string]bool{},
	}
	for _, option := range options {
		option(c)
	}
	if c.timeout <= 0 {
		return nil, &ArgumentError{"command timeout", "greater than 0"}
	}
	if c.observer.Unavailable == nil {
		c.observer.Unavailable = warn
	}
	c.attempt = max(min(c.timeout, attemptTime), c.timeout/3)
	var err error
	if c.servers, err = newServers(client, c.attempt, c.timeout); err != nil {
		return nil, err
	}
	runtime.AddCleanup(c, func(s *servers) { _ = s.close() }, c.servers)
	return &Locks{c}, nil
}

// Lock returns a lock on one key. It sends nothing. It fails with an *ArgumentError.
func (l *Locks) Lock(key string, options ...Option) (*Lock, error) {
	return l.LockAll([]string{key}, options...)
}

// LockAll returns a lock on several keys, which are granted together or not at all. On a cluster,
// they must be in one slot. It sends nothing. It fails with an *ArgumentError.
func (l *Locks) LockAll(keys []string, options ...Option) (*Lock, error) {
	s, err := newSettings(keys, options)
	if err != nil {
		return nil, err
	}
	return &Lock{s, l.commands}, nil
}

// Adopt returns a grant that another process acquired and detached, by its keys, token and fence.
// The options are those of the lock. It fails with ErrNotHeld if the grant has ended.
func (l *Locks) Adopt(
	ctx context.Context, keys []string, token string, fence int64, options ...Option,
) (*Grant, error) {
	lock, err := l.LockAll(keys, options...)
	if err != nil {
		return nil, err
	}
	if token == "" || len(token) > mostToken || token == "*" {
		return nil, &ArgumentError{"token", "1 to 256 bytes, and not *"}
	}
	ctx, until, stop := bounded(ctx, l.commands.timeout)
	defer stop()
	h := newHold(lock, token, fence)
	// A command of the first process may still arrive.
	h.isUnclear = true
	if err := h.confirm(ctx, until); err != nil {
		if errors.Is(err, ErrLost) {
			return nil, ErrNotHeld
		}
		return nil, err
	}
	_, isShaped := shape.Of(ctx)
	return lock.granted(h, isShaped), nil
}

// ReleaseAll releases all grants of this object's locks within the command timeout, and returns how
// many still held. If a release fails, the others are released nevertheless.
func (l *Locks) ReleaseAll(ctx context.Context) (int, error) {
	ctx, until, stop := bounded(ctx, l.commands.timeout)
	defer stop()
	l.commands.mu.Lock()
	all := slices.Collect(maps.Keys(l.commands.held))
	l.commands.mu.Unlock()
	failures := make(chan error, len(all))
	for _, h := range all {
		go func() { failures <- h.release(ctx, until) }()
	}
	count := 0
	var failed error
	for range all {
		switch err := <-failures; {
		case err == nil:
			count++
		case !errors.Is(err, ErrLost) && !errors.Is(err, ErrNotHeld):
			failed = errors.Join(failed, err)
		}
	}
	return count, failed
}

// Close closes the connections for waits, and in a cluster all but those of sessions that are held.
// The program's client stays open, and held locks stay held. Later calls fail with redis.ErrClosed.
func (l *Locks) Close() error { return l.commands.servers.close() }

// String returns the address of the servers.
func (l *Locks) String() string { return "redislock.Locks(" + l.commands.servers.name + ")" }
