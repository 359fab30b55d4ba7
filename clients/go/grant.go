package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Grant is a grant of a lock. Whoever has it may extend or release it. It is safe for concurrent
// use.
//
// Release it, or hand it on with Detach. A Grant that is collected before that counts as lost: the
// library logs it, calls Observer.Lost, and releases the lock.
type Grant struct {
	// No text shows what is behind the pointer, so none shows the token.
	hold *hold
}

// Lock returns the lock that was acquired.
func (g *Grant) Lock() *Lock { return g.hold.Lock }

// Keys returns the keys.
func (g *Grant) Keys() []string { return g.hold.Lock.Keys() }

// Fence returns the fencing token: greater than that of every earlier grant of the keys.
func (g *Grant) Fence() int64 { return g.hold.fence }

// Token returns the token. Who knows it controls this grant.
func (g *Grant) Token() string { return g.hold.token }

// String returns the keys, the state and the fence, without the token.
func (g *Grant) String() string {
	name := [...]string{held: "held", lost: "lost", left: "released"}[g.hold.stateNow()]
	return fmt.Sprintf("redislock.Grant(%q %s fence=%d)", g.hold.options.keys, name, g.Fence())
}

// Lost returns a channel that is closed if the grant is lost before its release.
func (g *Grant) Lost() <-chan struct{} { return g.hold.gone }

// IsLost returns true if the grant ended before its release, by the local clock.
func (g *Grant) IsLost() bool { return g.hold.stateNow() == lost }

// Left returns the time until the loss if the lease isn't renewed, by the local clock; 0 if the
// grant has ended.
func (g *Grant) Left() time.Duration {
	g.hold.mu.Lock()
	defer g.hold.mu.Unlock()
	if g.hold.state != held {
		return 0
	}
	return max(time.Until(g.hold.deadline), 0)
}

// Release releases the lock within the command timeout. It fails with ErrLost if the grant was lost
// before, and with ErrNotHeld if it was released before. If it fails with ErrUnavailable, or
// because the context ends, the release goes on in the background until the lease is over.
func (g *Grant) Release(ctx context.Context) error {
	ctx, until, stop := bounded(ctx, g.hold.commands.timeout)
	defer stop()
	return g.hold.release(ctx, until)
}

// Extend lets the lease end in this time, or later, within the command timeout. Later renewals use
// the new lease. It fails with ErrLost if the grant is lost, and with ErrNotHeld if it was
// released.
func (g *Grant) Extend(ctx context.Context, lease time.Duration) error {
	if lease <= g.hold.options.margin {
		return &ArgumentError{"lease", "greater than the margin, and than 0"}
	}
	return g.hold.extend(ctx, lease)
}

// TTL asks the server what is left of the lease; 0 if this grant doesn't hold all its keys.
func (g *Grant) TTL(ctx context.Context) (time.Duration, error) {
	c := &call{token: g.Token()}
	replies, err := g.hold.commands.ofEachKey(ctx, c, g.hold.options.keys, "LOCK.CHECK", c.token)
	least := Unlimited
	for _, reply := range replies {
		ms, _ := reply.(int64)
		least = min(least, time.Duration(max(ms, 0))*time.Millisecond)
	}
	if err != nil {
		return 0, err
	}
	return least, nil
}

// Owned asks the server, and returns true if this grant holds all its keys.
func (g *Grant) Owned(ctx context.Context) (bool, error) {
	left, err := g.TTL(ctx)
	return left > 0, err
}

// Detach leaves the grant to another process, which adopts it by its keys, token and fence. It
// isn't renewed here any more. It fails with ErrNotHeld if the grant has ended, and with an
// *ArgumentError for a session, which ends with its connection.
func (g *Grant) Detach() error {
	if g.hold.session != nil {
		return &ArgumentError{"session", "off to detach a grant"}
	}
	if g.hold.stateNow() != held || g.hold.end(left) != held {
		return ErrNotHeld
	}
	return nil
}

// Context returns a context that ends with the cause ErrLost if the grant is lost. Call cancel when
// the context isn't needed any more.
func (g *Grant) Context(ctx context.Context) (within context.Context, cancel context.CancelFunc) {
	within, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-g.Lost():
			end(ErrLost)
		case <-within.Done():
		}
	}()
	return within, func() { end(context.Canceled) }
}

// Do calls work, and then releases the lock, also if work panics. The context of work ends with the
// cause ErrLost if the grant is lost.
//
// It returns the error of work, together with ErrLost if the grant was lost. If only the release
// finds no server, it returns nil, the observer hears of it, and the release goes on in the
// background.
func (g *Grant) Do(ctx context.Context, work func(ctx context.Context) error) (err error) {
	if g.hold.stateNow() == left {
		return ErrNotHeld
	}
	within, cancel := g.Context(ctx)
	defer func() {
		cancel()
		if lost := g.exit(ctx); lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	return work(within)
}

// exit releases at the end of a guarded block, unless the block did so.
func (g *Grant) exit(ctx context.Context) error {
	err := g.Release(context.WithoutCancel(ctx))
	switch {
	case errors.Is(err, ErrLost):
		return err
	case err != nil && !errors.Is(err, ErrNotHeld):
		tell(g.hold.commands.observer.Unavailable, err)
	}
	return nil
}
