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

// grant is what the server gave, by the local monotonic clock.
type grant struct {
	fence  int64
	onLost func()
	// Closed with the loss.
	lost chan struct{}
	// Closed when nothing is to be renewed any more.
	ended chan struct{}
	// Something else is due.
	changed chan struct{}

	mu    sync.Mutex
	phase phase
	holds int
	lease time.Duration
	until time.Time

	sessionMu sync.Mutex
	// The connection that it is tied to.
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

// moves from one phase to the next, if it is in the first; with the first move it isn't renewed any more.
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

// loses what was in this phase, and tells of it.
func (g *grant) loses(from phase) {
	if g.moves(from, isLost) {
		close(g.lost)
		if g.onLost != nil {
			g.onLost()
		}
	}
}

// keep renews a grant as long as it is held, and tells of its loss.
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

// renew tells whether the server answered.
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

// leave takes one hold off.
func (l *Lock) leave() (bool, error) {
	held := l.grant()
	if held == nil {
		return false, nil
	}
	if !held.isHeld() {
		held.loses(isHeld)
		l.forget(held)
		// Some of its keys may be held still.
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
	// Where an answer was lost, that one may have told of the release.
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
