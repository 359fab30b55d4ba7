package redislock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

const (
	// The time limit of a reply that the server sends at once.
	answerWithin = time.Second
	// The longest time of a wait on one connection. A silently dead connection is noticed then.
	slice = 15 * time.Second
	// No time limit, to redigo.
	forever = time.Duration(0)
	// The longest delay of the server's reply when a wait ends.
	grace = 250 * time.Millisecond
	// The interval at which a cancellation is repeated, because at the first one the wait may not
	// have begun.
	tellAgain = 20 * time.Millisecond

	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

type command struct {
	name string
	args []interface{}
}

type patience struct {
	waits bool
	// The zero time sets no limit.
	end time.Time
}

func (p patience) isOver() bool {
	return !p.end.IsZero() && !time.Now().Before(p.end)
}

// command returns a command with all keys and the token.
func (l *Lock) command(name string, args ...interface{}) command {
	all := []interface{}{}
	if len(l.options.Keys) > 1 {
		name = "M" + name
		all = append(all, len(l.options.Keys))
	}
	for _, key := range l.options.Keys {
		all = append(all, key)
	}
	all = append(all, l.options.Token)
	return command{"LOCK." + name, append(all, args...)}
}

// asks returns the command that requests the lock, and the time limit of its reply.
func (l *Lock) asks(p patience, holds int) (command, time.Duration) {
	o := l.options
	args := []interface{}{"PX", ms(o.Lease), "HOLDS", holds}
	if o.Shared {
		args = append(args, "SHARED")
	}
	if o.Limit > 0 {
		args = append(args, "LIMIT", o.Limit)
	}
	if o.Permits > 0 {
		args = append(args, "PERMITS", o.Permits)
	}
	// A lock that is held already is tied already.
	if o.Session && holds == 1 {
		args = append(args, "SESSION")
	}
	if !p.waits {
		return l.command("ACQUIRE", args...), answerWithin
	}
	// No KEEP with SESSION, because it would also keep the grant after the connection closes.
	if !o.Session {
		args = append(args, "KEEP", ms(o.Keep))
	}
	left := slice
	if !p.end.IsZero() {
		left = time.Until(p.end)
		args = append(args, "BLOCK", ms(left))
	}
	wait := l.command("WAIT", args...)
	switch {
	case !o.Session:
		return wait, inTime(left, slice) + grace
	case p.end.IsZero():
		// The place would end with the connection, so the wait stays on it. TCP's keepalive notices
		// a silently dead connection.
		return wait, forever
	default:
		return wait, inTime(left, left) + grace
	}
}

// inTime returns the shorter of two times, or zero if left is negative.
func inTime(left, most time.Duration) time.Duration {
	if left > most {
		return most
	}
	if left < 0 {
		return 0
	}
	return left
}

func (l *Lock) take(ctx context.Context, p patience) (int64, bool, error) {
	turnCtx := ctx
	if !p.end.IsZero() {
		within, cancel := context.WithDeadline(ctx, p.end)
		defer cancel()
		turnCtx = within
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-turnCtx.Done():
		return 0, false, ctx.Err()
	}
	before := l.grant()
	if !before.isHeld() {
		before = nil
	}
	holds := 1
	if before != nil {
		before.mu.Lock()
		holds = before.holds + 1
		before.mu.Unlock()
	}
	var session redis.Conn
	fence, sent, err := l.waitFor(ctx, p, holds, &session)
	if err != nil || fence == 0 {
		if session != nil {
			session.Close()
		}
		return 0, false, err
	}
	l.note(before, fence, sent, holds, session)
	return fence, true, nil
}

// waitFor returns the fence, and the time when the granted command was sent. The fence is 0 if the
// time passed without a grant.
func (l *Lock) waitFor(ctx context.Context, p patience, holds int, session *redis.Conn) (int64, time.Time, error) {
	pause := firstPause
	soon := l.options.Lease / 10
	for {
		sent := time.Now()
		asks, within := l.asks(p, holds)
		reply, err := l.askFor(ctx, holds, session, within, asks)
		if ctx.Err() != nil {
			l.giveUp(holds - 1)
			return 0, sent, ctx.Err()
		}
		switch {
		case err == nil && reply == nil:
			if !p.waits || p.isOver() {
				return 0, sent, nil
			}
		case err == nil:
			// The grant may be old if the reply took long, because this process may have been
			// stopped. Asking again sets the lease at a known time. The second reply waits for no
			// holder, so it is slow only if the network is.
			if time.Since(sent) > soon {
				soon = l.options.Lease
				continue
			}
			grant, err := redis.Values(reply, nil)
			if err != nil || len(grant) != 2 {
				return 0, sent, fmt.Errorf("redislock: not an answer of the module: %v", reply)
			}
			fence, err := redis.Int64(grant[1], nil)
			return fence, sent, err
		case !mayPass(err):
			return 0, sent, told(err)
		case p.isOver():
			l.giveUp(holds - 1)
			return 0, sent, err
		default:
			end := time.Now().Add(pause)
			if !p.end.IsZero() {
				end = earlier(end, p.end)
			}
			select {
			case <-time.After(time.Until(end)):
			case <-ctx.Done():
			}
			pause = longer(pause)
		}
	}
}

// askFor sends a request for the lock, and cancels the wait when the context ends.
func (l *Lock) askFor(ctx context.Context, holds int, session *redis.Conn, within time.Duration, c command) (interface{}, error) {
	type answer struct {
		reply interface{}
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		if l.options.Session && holds == 1 {
			a.reply, a.err = l.askOn(session, within, c)
		} else {
			a.reply, a.err = l.ask(within, c)
		}
		answers <- a
	}()
	select {
	case a := <-answers:
		return a.reply, a.err
	case <-ctx.Done():
	}
	for {
		_, _ = l.ask(answerWithin, l.cancel())
		select {
		case <-answers:
			return nil, ctx.Err()
		case <-time.After(tellAgain):
		}
	}
}

func (l *Lock) note(before *grant, fence int64, sent time.Time, holds int, session redis.Conn) {
	if before.isHeld() && before.fence == fence {
		before.mu.Lock()
		before.holds = holds
		before.mu.Unlock()
		before.renewed(sent, l.options.Lease)
		return
	}
	if before != nil {
		before.loses(isHeld)
	}
	held := &grant{
		fence: fence, holds: 1, lease: l.options.Lease, until: sent.Add(l.options.Lease), session: session,
		onLost: l.options.OnLost, lost: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	l.mu.Lock()
	l.current = held
	l.mu.Unlock()
	if l.options.Session && session == nil {
		// The grant before was lost meanwhile, so this grant isn't tied yet.
		l.renew(held)
	}
	go l.keep(held)
}

// cancel returns a CANCEL. One key is enough, because a wait for several keys is cancelled as a
// whole.
func (l *Lock) cancel() command {
	return command{"LOCK.CANCEL", []interface{}{l.options.Keys[0], l.options.Token}}
}

// giveUp cancels a wait, and releases everything except the holds from before it. CANCEL comes
// first, so that no grant can follow the RELEASE.
func (l *Lock) giveUp(holds int) {
	_, _ = l.ask(grace, l.cancel())
	_, _ = l.ask(grace, l.command("RELEASE", "HOLDS", holds))
}

// askUntil sends a command until it gets a reply or the time is over. It returns the reply, and
// true if an earlier reply was lost.
func (l *Lock) askUntil(until time.Time, c command) (interface{}, bool, error) {
	pause := firstPause
	for again := false; ; again = true {
		reply, err := l.ask(answerWithin, c)
		if err == nil || !mayPass(err) || !time.Now().Before(until) {
			return reply, again, err
		}
		time.Sleep(time.Until(earlier(time.Now().Add(pause), until)))
		pause = longer(pause)
	}
}

func (l *Lock) ask(within time.Duration, c command) (interface{}, error) {
	conn := l.source.Get()
	defer conn.Close()
	return l.askConn(conn, within, c)
}

// askOn sends a command on the lock's own connection, which it opens if there is none.
func (l *Lock) askOn(session *redis.Conn, within time.Duration, c command) (interface{}, error) {
	if *session == nil {
		*session = l.source.Get()
	}
	reply, err := l.askConn(*session, within, c)
	if err != nil && mayPass(err) {
		(*session).Close()
		*session = nil
	}
	return reply, err
}

func (l *Lock) askConn(conn redis.Conn, within time.Duration, c command) (interface{}, error) {
	// Binds the connection to the node of the first key, because a command for several keys doesn't
	// begin with a key.
	if cluster, ok := conn.(interface{ Bind(...string) error }); ok {
		_ = cluster.Bind(l.options.Keys[0])
	}
	reply, err := redis.DoWithTimeout(conn, within, c.name, c.args...)
	if said, ok := err.(redis.Error); ok && strings.HasPrefix(string(said), "ASK ") && !l.options.Session {
		return askElsewhere(said, within, c)
	}
	return reply, err
}

// askElsewhere sends a command to the node that an ASK error names. It sends no password.
func askElsewhere(said redis.Error, within time.Duration, c command) (interface{}, error) {
	words := strings.Fields(string(said))
	conn, err := redis.Dial("tcp", words[len(words)-1], redis.DialConnectTimeout(answerWithin))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := redis.DoWithTimeout(conn, answerWithin, "ASKING"); err != nil {
		return nil, said
	}
	return redis.DoWithTimeout(conn, within, c.name, c.args...)
}

// heldAll returns true if an EXTEND or a RELEASE found all keys held.
func (l *Lock) heldAll(reply interface{}) bool {
	count, err := redis.Int(reply, nil)
	return err == nil && count == len(l.options.Keys)
}

// mayPass returns true if the command should be sent again on a new connection.
func mayPass(err error) bool {
	said, isReply := err.(redis.Error)
	if !isReply {
		return true
	}
	code := strings.SplitN(string(said), " ", 2)[0]
	switch code {
	case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK":
		return true
	}
	// The server's error to its blocked clients when it becomes a replica.
	return code == "UNBLOCKED" && strings.Contains(string(said), "instance state changed")
}

func told(err error) error {
	said := err.Error()
	switch {
	case strings.HasPrefix(said, "DEADLOCK"):
		return fmt.Errorf("%w: %s", ErrDeadlock, said)
	case strings.HasPrefix(said, "UNBLOCKED") && strings.Contains(said, "LOCK.CANCEL"):
		return ErrCancelled
	}
	return err
}

// ms returns milliseconds, rounded up because a wait must not end early, and at least 1.
func ms(d time.Duration) int64 {
	if d <= 0 {
		return 1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func longer(pause time.Duration) time.Duration {
	if pause *= 2; pause > longestPause {
		return longestPause
	}
	return pause
}

func earlier(one, other time.Time) time.Time {
	if one.Before(other) {
		return one
	}
	return other
}
