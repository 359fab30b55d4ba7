package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redis-lock/redis-lock/clients/go/redsync"
)

// driftFactor leaves as much of the expiry off as the other libraries' margin does.
const driftFactor = 0.1

// masters executes orders with mutexes on several independent masters.
type masters struct {
	rs     *redsync.Redsync
	isFast bool
	mu     sync.Mutex
	named  map[string]*kept
}

// kept is a mutex that is extended while it is held.
type kept struct {
	*redsync.Mutex
	expiry time.Duration
	// ended is closed when the mutex is released or lost.
	ended chan struct{}
	end   sync.Once
}

func connectMasters(addresses []string) *masters {
	var clients []redis.UniversalClient
	for _, address := range addresses {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: address}))
	}
	isFast := len(os.Args) > 1 && os.Args[1] == "redsync-fast"
	return &masters{rs: redsync.New(clients...), isFast: isFast, named: map[string]*kept{}}
}

func (m *masters) obey(ctx context.Context, o order) (answer, error) {
	if o.Do == "lock" {
		m.lock(o)
		return answer{"ok": true}, nil
	}
	m.mu.Lock()
	mutex := m.named[o.Lock]
	m.mu.Unlock()
	switch o.Do {
	case "acquire":
		return mutex.acquire(ctx, o)
	case "release":
		mutex.stop()
		ok, err := mutex.UnlockContext(ctx)
		return answer{"ok": ok}, unlessRefused(err)
	}
	return nil, fmt.Errorf("no such order for masters: %s", o.Do)
}

func (m *masters) lock(o order) {
	mutex := m.rs.NewMutex(o.Keys[0], redsync.WithExpiry(o.Lease.Duration),
		redsync.WithDriftFactor(driftFactor), redsync.WithTries(math.MaxInt),
		redsync.WithFailFast(m.isFast))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.named[o.Lock] = &kept{Mutex: mutex, expiry: o.Lease.Duration, ended: make(chan struct{})}
}

func (k *kept) acquire(ctx context.Context, o order) (answer, error) {
	lock := k.LockContext
	if o.Wait.Duration == 0 {
		lock = k.TryLockContext
	} else {
		within, cancel := context.WithTimeout(ctx, o.Wait.Duration)
		defer cancel()
		ctx = within
	}
	if err := lock(ctx); err != nil {
		return answer{"ok": false}, unlessRefused(err)
	}
	go k.extend()
	go k.watch(o.Lock)
	return answer{"ok": true, "fence": k.Fence()}, nil
}

// extend extends the mutex each third of its expiry.
func (k *kept) extend() {
	for {
		select {
		case <-time.After(k.expiry / 3):
			// If it failed, the mutex may still be extended in time.
			_, _ = k.Extend()
		case <-k.ended:
			return
		}
	}
}

// watch reports the loss when the mutex isn't surely held any more.
func (k *kept) watch(name string) {
	for left := time.Until(k.Until()); left > 0; left = time.Until(k.Until()) {
		select {
		case <-time.After(left):
		case <-k.ended:
			return
		}
	}
	say(answer{"event": "lost", "lock": name})
	k.stop()
}

func (k *kept) stop() { k.end.Do(func() { close(k.ended) }) }

// unlessRefused returns nil for an error which says that somebody else has or had the lock. The
// answer's "ok" tells that.
func unlessRefused(err error) error {
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) ||
		errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return nil
	}
	return err
}
