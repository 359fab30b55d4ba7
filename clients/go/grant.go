package redislock

import (
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

type phase int

const (
	isHeld phase = iota
	isLeaving
	isReleased
	isLost
)

// grant is one grant of the lock. Its times are those of the local monotonic clock.
type grant struct {
	fence  int64
	onLost func()
	// Closed when the lock is lost.
	lost chan struct{}
	// Closed when the renewals end.
	ended chan struct{}
	// Receives a value when the lease has changed.
	changed chan struct{}

	mu    sync.Mutex
	phase phase
	holds int
	lease time.Duration
	until time.Time

	sessionMu sync.Mutex
	// The connection to which the grant is tied.
	session redis.Conn
}

func (g *grant) renewed(sent time.Time, lease time.Duration) {
	g.mu.Lock()
	g.lease, g.until = lease, sent.Add(lease)
	g.mu.Unlock()
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

func (g *grant) term() (time.Duration, time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lease, g.until
}

func (g *grant) ends() time.Time {
	_, until := g.term()
	return until
}

func (g *grant) isHeld() bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.phase == isHeld && time.Now().Before(g.until)
}

func (g *grant) isLost() bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.phase == isLost || g.phase == isHeld && !time.Now().Before(g.until)
}

// moves changes the phase if it is from, and returns true if it was. Leaving isHeld ends the
// renewals.
func (g *grant) moves(from, to phase) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.phase != from {
		return false
	}
	g.phase = to
	if from == isHeld {
		close(g.ended)
	}
	return true
}

// loses marks a grant in this phase as lost, and reports the loss.
func (g *grant) loses(from phase) {
	if g.moves(from, isLost) {
		close(g.lost)
		if g.onLost != nil {
			g.onLost()
		}
	}
}

// keep renews a grant while it is held, and reports its loss.
func (l *Lock) keep(held *grant) {
	pause := firstPause
	failed := false
	for {
		lease, until := held.term()
		due := until.Add(lease/3 - lease)
		switch {
		case l.options.NoRenewal:
			due = until
		case failed:
			due = earlier(time.Now().Add(pause), until)
			pause = longer(pause)
		default:
			pause = firstPause
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-held.ended:
			timer.Stop()
			return
		case <-held.changed:
			timer.Stop()
			failed = false
			continue
		case <-timer.C:
		}
		if !time.Now().Before(held.ends()) {
			held.loses(isHeld)
			return
		}
		failed = !l.renew(held)
	}
}

// renew sends one renewal, and returns true if the server replied.
func (l *Lock) renew(held *grant) bool {
	sent := time.Now()
	lease, until := held.term()
	within := until.Sub(sent)
	if within > answerWithin {
		within = answerWithin
	}
	extend := l.command("EXTEND", "PX", ms(lease))
	var reply interface{}
	var err error
	if l.options.Session {
		extend.args = append(extend.args, "SESSION")
		held.sessionMu.Lock()
		reply, err = l.askOn(&held.session, within, extend)
		held.sessionMu.Unlock()
	} else {
		reply, err = l.ask(within, extend)
	}
	if err == nil {
		l.extended(held, reply, sent, lease)
	}
	return err == nil
}

func (l *Lock) extended(held *grant, reply interface{}, sent time.Time, lease time.Duration) bool {
	extended := l.heldAll(reply)
	if extended {
		held.renewed(sent, lease)
	} else {
		held.loses(isHeld)
	}
	return extended
}

// leave releases one hold, and returns true if the lock was still held.
func (l *Lock) leave() (bool, error) {
	held := l.grant()
	if held == nil {
		return false, nil
	}
	if !held.isHeld() {
		held.loses(isHeld)
		l.forget(held)
		// Some of the keys may still be held.
		_, _ = l.ask(answerWithin, l.command("RELEASE", "HOLDS", 0))
		return false, nil
	}
	held.mu.Lock()
	held.holds--
	holds, until := held.holds, held.until
	held.mu.Unlock()
	if holds == 0 {
		held.moves(isHeld, isLeaving)
		defer l.forget(held)
	}
	reply, again, err := l.askUntil(until, l.command("RELEASE", "HOLDS", holds))
	if err != nil {
		return false, err
	}
	// If a reply was lost, the command before may have released the lock.
	if !l.heldAll(reply) && !(again && holds == 0) {
		held.loses(isLeaving)
		held.loses(isHeld)
		return false, nil
	}
	held.moves(isLeaving, isReleased)
	return true, nil
}

func (l *Lock) forget(held *grant) {
	l.mu.Lock()
	l.current = nil
	l.mu.Unlock()
	held.sessionMu.Lock()
	defer held.sessionMu.Unlock()
	if held.session != nil {
		held.session.Close()
		held.session = nil
	}
}
