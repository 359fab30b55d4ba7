package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// The time that a call takes beyond its limit, to learn how it ended.
	confirmWithin = 100 * time.Millisecond
	// The longest time of an attempt. After it, another server may be the right one.
	attemptWithin = time.Second
	// The time within which a grant counts as one without a wait.
	atOnce = 10 * time.Millisecond
	// The time that a reply takes, roughly, if the server has nothing to wait for.
	replyWithin = time.Millisecond
	// The longest time without a sign of life from the server in a wait.
	askEvery = 3 * time.Second
)

// command is a command to the server, and the position of its first key.
type command struct {
	words []any
	key   int8
}

// command returns a command with all keys and the token.
func (o *owner) command(verb string, args ...any) command {
	c := command{[]any{"LOCK." + verb}, 1}
	if len(o.keys) > 1 {
		c = command{[]any{"LOCK.M" + verb, len(o.keys)}, 2}
	}
	for _, key := range o.keys {
		c.words = append(c.words, key)
	}
	c.words = append(append(c.words, o.token()), args...)
	return c
}

// cancel returns the command that cancels a wait. One key is enough for all.
func (o *owner) cancel() command {
	return command{[]any{"LOCK.CANCEL", o.keys[0], o.token()}, 1}
}

// patience is how long an acquire goes on. Limit 0 is no limit.
type patience struct {
	waits bool
	limit time.Duration
}

// search is one acquire in progress. It has the owner's turn.
type search struct {
	*owner
	patience
	// Ends with the limit.
	ctx    context.Context
	caller context.Context
	began  time.Time
	before *grant
	holds  int
	// The lease that it sets, which hides that of the settings: a further hold keeps the one of Extend.
	lease time.Duration
	// True after the lock was found not to be free.
	waited bool
	// The outage that goes on, or nil.
	outage error
	// The connection of its own, or nil.
	own redis.UniversalClient
	// The wait that blocked, or nil.
	blocked *blockedWait
	// True if the server may have a place or a grant of it.
	hasTraces bool
	// Returns the commands that undo it.
	undoing func(*search) []command
}

// request returns the command that acquires the search's holds.
func (s *search) request(verb string, args ...any) command {
	mode := []any{"PX", ms(s.lease), "HOLDS", s.holds}
	if s.shared {
		mode = append(mode, "SHARED")
	}
	if s.owner.limit > 0 {
		mode = append(mode, "LIMIT", s.owner.limit)
	}
	if s.permits > 0 {
		mode = append(mode, "PERMITS", s.permits)
	}
	if s.data != nil {
		mode = append(mode, "DATA", *s.data)
	}
	return s.command(verb, append(mode, args...)...)
}

func (o *owner) acquire(caller context.Context, p patience) (hold, error) {
	return o.begin(caller, p, (*search).cancelAndRelease)
}

// begin begins a search, and returns its end.
func (o *owner) begin(caller context.Context, p patience, undoing func(*search) []command) (hold, error) {
	if err := caller.Err(); err != nil {
		return hold{}, err
	}
	s := &search{
		owner: o, patience: p, ctx: caller, caller: caller, began: time.Now(), holds: 1,
		lease: min(o.lease, o.maxHold), undoing: undoing,
	}
	if p.limit > 0 {
		limited, cancel := context.WithTimeout(caller, p.limit)
		defer cancel()
		s.ctx = limited
	}
	got, err := s.run()
	// An error that came later than a reply takes ended a wait.
	hasWaited := s.waited || err != nil && time.Since(s.began) > replyWithin
	if hasWaited && s.waits {
		o.observe(func(lock *Lock) {
			if waited := o.locks.observer.Waited; waited != nil {
				waited(lock, time.Since(s.began), outcome(err))
			}
		})
	}
	return got, err
}

func outcome(err error) Outcome {
	switch {
	case err == nil:
		return Granted
	case errors.Is(err, ErrNotAcquired):
		return NotAcquired
	case errors.Is(err, context.Canceled):
		return Cancelled
	}
	return Failed
}

func (s *search) run() (hold, error) {
	if err := s.takeTurn(); err != nil {
		return hold{}, err
	}
	s.sees(sight{})
	if s.before, _ = s.held(); s.before != nil {
		return s.addHold()
	}
	if s.owesReleases() {
		s.giveTurn(true)
		return hold{}, ErrLost
	}
	if s.isSpent.Swap(false) {
		s.drawAgain()
	}
	return s.take()
}

// addHold takes a further hold. Nothing else sets the lease meanwhile, because the command that the
// server carries out last may get the first reply.
func (s *search) addHold() (hold, error) {
	g := s.before
	select {
	case g.extending <- struct{}{}:
	case <-g.ctx.Done():
		s.giveTurn(true)
		return hold{}, ErrLost
	case <-s.ctx.Done():
		s.giveTurn(true)
		return hold{}, s.over(false)
	}
	defer func() { <-g.extending }()
	s.mu.Lock()
	s.holds, s.lease = g.holds+1, s.leaseOf(g, g.lease, time.Now())
	s.mu.Unlock()
	return s.take()
}

// take gets the holds from the server.
func (s *search) take() (hold, error) {
	fence, sent, err := s.seek()
	if err != nil {
		return hold{}, err
	}
	g := s.grant(fence, sent)
	if g == nil {
		return hold{}, s.lostBefore()
	}
	s.giveTurn(s.reentrant)
	return hold{fence, g, s.holds}, nil
}

// lostBefore ends the search of another hold: the lock was lost with its first ones. What it got is
// released.
func (s *search) lostBefore() error {
	s.lose(s.before)
	s.holds = 1
	s.leave()
	return ErrLost
}

// over returns the error at the end of the context: "not acquired" only if somebody else was seen
// to have the lock, without an outage since.
func (s *search) over(isRefused bool) error {
	if errors.Is(s.caller.Err(), context.Canceled) {
		return s.caller.Err()
	}
	err := ErrNotAcquired
	if s.outage != nil {
		err = unavailable(s.outage)
	} else if !isRefused {
		err = unavailable(s.locks.link.noAnswer(time.Since(s.began)))
	}
	if deadline := s.caller.Err(); deadline != nil {
		return fmt.Errorf("%w (%w)", err, deadline)
	}
	return err
}

// seek returns the fence, and the time when the granted command was sent. After an error, it has
// given the turn.
func (s *search) seek() (int64, time.Time, error) {
	ask := s.request("ACQUIRE")
	takesPlace := s.waits && s.before == nil
	var woken bell
	var w *waiter
	if takesPlace {
		message, b := s.locks.link.add()
		defer s.locks.link.remove(message)
		woken = b
		w = s.locks.link.blocking.enter(s.keys[0], b)
		defer s.locks.link.blocking.leave(w)
		ask = s.request("QUEUE", "KEEP", ms(s.keep), "NOTIFY", s.channel, message)
	}
	soon := s.lease / 10
	pause := firstPause
	defer s.unblock(s.cancel())
	for {
		fence, sent, err := s.attempt(ask, w)
		s.hasTraces = s.hasTraces || err == nil || !s.locks.link.isUnsent(err)
		if fence > 0 && err == nil {
			fence, err = s.confirm(fence)
		}
		if isCancelled := errors.Is(s.ctx.Err(), context.Canceled); isCancelled || s.ctx.Err() != nil && fence == 0 {
			return 0, sent, s.end(err)
		}
		switch {
		case err == nil && fence > 0:
			// The grant may be old if the reply took long, because this process may have been
			// stopped. Asking again sets the lease at a known time. The second reply waits for no
			// holder, so it is slow only if the network is.
			took := time.Since(sent)
			if took <= soon {
				return fence, sent, nil
			}
			if took < s.lease {
				soon = s.lease
				continue
			}
			// The grant may have ended. A pause follows, because each reply may take as long.
			err = s.locks.link.noAnswer(took)
		case err == nil && s.before != nil:
			// A holder's ACQUIRE is never refused.
			return 0, sent, s.lostBefore()
		case err == nil && !takesPlace:
			s.sees(taken)
			s.closeOwn()
			s.giveTurn(true)
			return 0, sent, ErrNotAcquired
		case err == nil:
			s.waited, s.outage, pause = true, nil, firstPause
			s.sees(taken)
			s.locks.link.blocking.isContended.Store(true)
			s.locks.link.listen(s.channel)
			if err = s.await(woken); s.ctx.Err() != nil {
				return 0, sent, s.end(nil)
			}
		}
		switch {
		case err == nil:
		case !isOutage(err):
			return 0, sent, s.fail(err)
		default:
			s.suffer(err)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
				return 0, sent, s.end(err)
			}
			pause = longer(pause)
		}
	}
}

// await returns when the server may have granted the place, when it is time to ask, or when ctx ends. It
// fails if nothing can notify the waiter.
func (s *search) await(woken bell) error {
	again := time.After(min(s.keep/3, s.lease/3, askEvery))
	for {
		select {
		case err := <-woken:
			return err
		case <-again:
			return nil
		case late := <-s.lateReply():
			s.blocked = nil
			if _, isReply := reply(late.err); !isReply && !errors.Is(late.err, context.Canceled) {
				return nil
			}
		case <-s.ctx.Done():
			return nil
		}
	}
}

// attempt blocks for a moment if the waiter may, and sends the request unless that was enough.
func (s *search) attempt(request command, w *waiter) (int64, time.Time, error) {
	if w != nil {
		if fence, sent, err := s.block(w); !goesOn(err) {
			return fence, sent, err
		}
	}
	return s.claim(request)
}

// claim sends a request, and returns the fence and the time when it was sent.
func (s *search) claim(request command) (int64, time.Time, error) {
	sent := time.Now()
	fence, err := grantOf(s.send(s.locks.link.shared, request, s.locks.link.attempt))
	return fence, sent, err
}

// send sends one request. It takes a little longer than what is left of the limit, so that the reply
// can still tell how a wait ended. Cancellation interrupts it, and so does the end of a try.
func (s *search) send(client redis.UniversalClient, c command, attempt time.Duration) (any, error) {
	within := attempt + confirmWithin
	if deadline, ok := s.ctx.Deadline(); ok {
		within = min(within, max(0, time.Until(deadline))+confirmWithin)
	}
	interrupts := func() bool { return !s.waits || errors.Is(s.ctx.Err(), context.Canceled) }
	return s.owner.send(s.ctx, interrupts, within, client, c, s.undoing(s)...)
}

// send sends a command once. If the end of ctx interrupts it, its connection is closed behind the
// commands that undo it, and a reply that came meanwhile counts for nothing.
func (o *owner) send(
	ctx context.Context, interrupts func() bool, within time.Duration,
	client redis.UniversalClient, c command, undo ...command,
) (any, error) {
	limited, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	interrupted := make(chan bool, 1)
	sent := time.Now()
	stop := context.AfterFunc(ctx, func() {
		isInterrupted := interrupts()
		if isInterrupted {
			cancel()
			o.locks.link.undo(o.token, undo...)
		}
		interrupted <- isInterrupted
	})
	reply, err := o.locks.link.do(limited, client, c)
	// The undo mustn't hit the next command with this token.
	if !stop() && <-interrupted && err == nil && len(undo) > 0 {
		return nil, o.locks.link.noAnswer(time.Since(sent))
	}
	return reply, err
}

// cancelAndRelease returns the commands that undo the search. CANCEL comes first, so that no grant can
// follow the RELEASE. A token that is shared may hold the lock for somebody else.
func (s *search) cancelAndRelease() []command {
	if s.sharesToken {
		return []command{s.cancel()}
	}
	return []command{s.cancel(), s.command("RELEASE", "HOLDS", s.holds-1)}
}

// leaveToLease returns no command, because the grant is older than the search.
func (s *search) leaveToLease() []command { return nil }

// confirm ties the grant to a connection of its own, and waits for replicas, if the options say so.
func (s *search) confirm(fence int64) (int64, error) {
	tie := s.session && s.before == nil
	if !tie && s.replicas == 0 {
		return fence, nil
	}
	args := []any{}
	if tie {
		args = append(args, "SESSION")
	}
	if s.replicas > 0 {
		within := s.locks.timeout
		if deadline, ok := s.ctx.Deadline(); ok {
			within = min(within, time.Until(deadline))
		}
		args = append(args, "REPLICAS", s.replicas, "WITHIN", ms(within))
	}
	if s.own == nil {
		s.own = s.locks.link.open(1)
	}
	reply, err := s.send(s.own, s.request("ACQUIRE", args...), s.locks.timeout)
	if !tie {
		s.closeOwn()
	}
	return grantOf(reply, err)
}

func (s *search) closeOwn() {
	if s.own != nil {
		_ = s.own.Close()
		s.own = nil
	}
}

// suffer notes an outage. If nobody waits for the end of this search, the observer hears of it.
func (s *search) suffer(err error) {
	_, isLimited := s.ctx.Deadline()
	if s.outage == nil && !isLimited {
		s.locks.report(unavailable(err))
	}
	s.outage = err
	s.sees(outage(err))
}

// end leaves the queue, and returns the error, because the context has ended. The last request ended
// with err.
func (s *search) end(err error) error {
	wasRefused := err == nil
	s.outage = err
	if !s.hasTraces {
		s.sees(sight{outage: err})
		s.giveTurn(true)
		return s.over(wasRefused)
	}
	left := s.leave()
	if s.outage == nil || errors.Is(s.caller.Err(), context.Canceled) {
		select {
		case ok := <-left:
			wasRefused = wasRefused && ok
		case <-s.farewell():
			wasRefused = false
		}
	}
	return s.over(wasRefused)
}

// farewell returns a channel for the end of the time in which a search leaves. The time counts from
// the limit, because the last request may have taken a part of it.
func (s *search) farewell() <-chan time.Time {
	ended := time.Now()
	if deadline, ok := s.ctx.Deadline(); ok && deadline.Before(ended) {
		ended = deadline
	}
	return time.After(time.Until(ended.Add(2 * confirmWithin)))
}

// fail returns a final error of the server.
func (s *search) fail(err error) error {
	if !s.hasTraces {
		s.giveTurn(true)
		return final(err, s.token)
	}
	select {
	case <-s.leave():
	case <-time.After(confirmWithin):
	}
	return final(err, s.token)
}

// leave undoes the search in the background. The turn is given when nothing is left. The channel has
// true once the search is known to hold nothing, and false after an outage.
func (s *search) leave() <-chan bool {
	// One for the reply to CANCEL, and one for the end.
	known := make(chan bool, 2)
	s.sees(sight{outage: s.outage})
	s.unblock(s.undoing(s)...)
	// What undid the search on its connection may still be on its way to the server.
	s.isSpent.Store(true)
	go func() {
		// After this time, the place and the grant have ended anyway.
		ctx, cancel := context.WithTimeout(context.Background(), max(s.keep, s.lease))
		defer cancel()
		again := s.clean(ctx, known)
		if again {
			// Commands of the outage may have arrived just now.
			time.Sleep(firstPause)
			s.clean(ctx, make(chan bool, 1))
		}
		s.closeOwn()
		s.giveTurn(true)
		known <- !again
	}()
	return known
}

// clean sends the commands that undo the search. It returns true if there was an outage. A place that
// was cancelled wasn't granted, so known has true before the last reply.
func (s *search) clean(ctx context.Context, known chan<- bool) (again bool) {
	report := func(err error) {
		s.sees(outage(err))
		s.locks.report(err)
	}
	for number, c := range s.undoing(s) {
		a := s.ask(ctx, s.locks.link.shared, c, report)
		isCancelled := number == 0 && !a.again && a.count == 1
		if isCancelled {
			known <- true
		}
		again = again || a.again || number > 0 && a.err != nil
		report = func(error) {}
	}
	return again
}

// grantOf returns the fence of a grant, or 0 if the reply is a place or nil.
func grantOf(reply any, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	switch reply := reply.(type) {
	case nil, int64:
		return 0, nil
	case []any:
		if len(reply) == 2 {
			if fence, ok := reply[1].(int64); ok {
				return fence, nil
			}
		}
	}
	return 0, fmt.Errorf("redislock: not a reply of the module: %T", reply)
}

// answer is the end of a command that was sent until a server answered.
type answer struct {
	reply any
	// The reply if it is a number.
	count int64
	sent  time.Time
	// True if an earlier attempt failed.
	again bool
	// True if the server may have carried out an earlier attempt.
	isUnsure bool
	err      error
}

// ask sends a command until the server answers or ctx ends. The first outage is reported.
func (o *owner) ask(ctx context.Context, client redis.UniversalClient, c command, report func(error)) (a answer) {
	isReported := false
	for pause := firstPause; ; pause = longer(pause) {
		a.sent = time.Now()
		attempt, cancel := context.WithTimeout(ctx, o.locks.link.attempt)
		reply, err := o.locks.link.do(attempt, client, c)
		cancel()
		if err == nil || !isOutage(err) {
			a.reply = reply
			a.count, _ = reply.(int64)
			a.err = final(err, o.token)
			return a
		}
		// undo may have closed the connection that the pool gave out. After a cancellation, it isn't known
		// whether there is an outage.
		if !isReported && !errors.Is(err, net.ErrClosed) && !errors.Is(ctx.Err(), context.Canceled) {
			isReported = true
			report(unavailable(err))
		}
		a.again = true
		a.isUnsure = a.isUnsure || !o.locks.link.isUnsent(err)
		o.isSpent.Store(true)
		a.err = unavailable(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return a
		}
	}
}

// call runs work that asks, and returns when ctx or the command timeout ends, even if work goes on.
// The context of work ends then too. If the caller cancelled it, the observer hears of an outage.
func (o *owner) call(ctx context.Context, work func(ctx context.Context, report func(error)) error) error {
	ctx, cancel := context.WithTimeout(ctx, o.locks.timeout)
	defer cancel()
	done := make(chan error, 1)
	outage := make(chan error, 1)
	isCancelled := func() bool { return errors.Is(ctx.Err(), context.Canceled) }
	go func() {
		done <- work(ctx, func(err error) {
			select {
			case outage <- err:
			default:
			}
			if isCancelled() {
				o.locks.report(err)
			}
		})
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	if isCancelled() {
		return ctx.Err()
	}
	select {
	case err := <-outage:
		return err
	default:
		return unavailable(o.locks.link.noAnswer(o.locks.timeout))
	}
}

// release releases one hold or all. It goes on in the background when ctx has ended.
func (o *owner) release(ctx context.Context, all bool) error {
	if !o.reentrant {
		return o.releaseInTurn(ctx, all)
	}
	// The count of holds must not change meanwhile.
	select {
	case o.turn <- struct{}{}:
		return o.releaseInTurn(ctx, all)
	default:
	}
	limited, cancel := context.WithTimeout(ctx, o.locks.timeout)
	defer cancel()
	select {
	case o.turn <- struct{}{}:
		return o.releaseInTurn(limited, all)
	case <-limited.Done():
	}
	go func() {
		o.turn <- struct{}{}
		_ = o.releaseInTurn(context.Background(), all)
	}()
	if errors.Is(limited.Err(), context.Canceled) {
		return limited.Err()
	}
	err := unavailable(o.locks.link.noAnswer(o.locks.timeout))
	o.locks.report(err)
	return err
}

// releaseInTurn is release by the goroutine that has the turn.
func (o *owner) releaseInTurn(ctx context.Context, all bool) error {
	limited, cancel := context.WithTimeout(ctx, o.locks.timeout)
	defer cancel()
	g, isLost := o.held()
	holds := 0
	if g != nil && !all {
		holds = g.holds - 1
	}
	if g == nil || holds == 0 && !o.drop(g, false) {
		o.giveTurn(o.reentrant)
		if isLost {
			o.paidRelease()
			return ErrLost
		}
		return ErrNotHeld
	}
	o.mu.Lock()
	g.holds = holds
	until := g.until
	o.mu.Unlock()
	finish := func(count int64, isUnsure bool, err error) error {
		// If a reply was lost, the command before may have released the lock.
		if err == nil && count != int64(len(o.keys)) && !(isUnsure && holds == 0) {
			err = ErrLost
			o.loseLate(g, holds)
		}
		if holds == 0 {
			g.close()
		}
		if holds == 0 && o.atLeast > 0 {
			// The lock stays for this owner too.
			o.drawAgain()
		}
		o.giveTurn(o.reentrant || holds == 0)
		return err
	}
	always := func() bool { return true }
	reply, err := o.send(limited, always, o.locks.link.attempt, o.locks.link.shared, o.releasing(g, holds))
	if err == nil || !isOutage(err) {
		count, _ := reply.(int64)
		return finish(count, false, final(err, o.token))
	}
	first, isUnsure := unavailable(err), !o.locks.link.isUnsent(err)
	o.sees(outage(err))
	err = o.call(limited, func(_ context.Context, report func(error)) error {
		report(first)
		within, cancel := context.WithDeadline(context.Background(), until)
		defer cancel()
		a := o.ask(within, o.locks.link.shared, o.releasing(g, holds), func(error) {})
		return finish(a.count, isUnsure || a.isUnsure, a.err)
	})
	if errors.Is(err, ErrUnavailable) {
		o.locks.report(err)
	}
	return err
}

// releasing returns the command that leaves this many holds.
func (o *owner) releasing(g *grant, holds int) command {
	if stays := o.atLeast - time.Since(g.since); holds == 0 && stays > 0 {
		words := []any{"PX", ms(stays)}
		if o.session {
			words = append(words, "NOSESSION")
		}
		return o.command("EXTEND", words...)
	}
	return o.command("RELEASE", "HOLDS", holds)
}

// loseLate notes a loss that the release has found.
func (o *owner) loseLate(g *grant, holds int) {
	if holds > 0 {
		o.lose(g)
		return
	}
	o.mu.Lock()
	o.isLost = true
	close(o.lost)
	o.mu.Unlock()
	o.tellLoss()
}

func (o *owner) extend(ctx context.Context, lease time.Duration) error {
	g, isLost := o.held()
	if isLost {
		return ErrLost
	}
	if g == nil {
		return ErrNotHeld
	}
	err := o.call(ctx, func(ctx context.Context, report func(error)) error {
		o.mu.Lock()
		until := g.until
		o.mu.Unlock()
		// The end of the lease is reported by the goroutine that extends.
		within, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		defer context.AfterFunc(g.ctx, cancel)()
		select {
		case g.extending <- struct{}{}:
		case <-within.Done():
			return unavailable(o.locks.link.noAnswer(o.locks.timeout))
		}
		defer func() { <-g.extending }()
		return o.prolong(within, g, lease, report)
	})
	if err == nil {
		return nil
	}
	switch held, isLost := o.held(); {
	case held == g:
		return err
	case isLost:
		return ErrLost
	}
	// It was released meanwhile.
	return ErrNotHeld
}

// prolong sets the lease of a grant. The caller is the one that extends it.
func (o *owner) prolong(ctx context.Context, g *grant, lease time.Duration, report func(error)) error {
	client, args := o.locks.link.shared, []any{}
	if g.own != nil {
		client, args = g.own, []any{"SESSION"}
	}
	began := time.Now()
	length := o.leaseOf(g, lease, began)
	o.mu.Lock()
	if lease > g.lease {
		g.unanswered = max(g.unanswered, length)
	}
	o.mu.Unlock()
	a := o.ask(ctx, client, o.command("EXTEND", append([]any{"PX", ms(length)}, args...)...), report)
	if a.err == nil && a.count != int64(len(o.keys)) {
		o.lose(g)
		return ErrLost
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.err != nil {
		if a.isUnsure {
			o.shorten(g, began.Add(length))
		}
		return a.err
	}
	if ctx.Err() != nil {
		// The caller has its error by now.
		o.shorten(g, a.sent.Add(length))
		return unavailable(o.locks.link.noAnswer(time.Since(a.sent)))
	}
	g.lease, g.until, g.unanswered = lease, a.sent.Add(length), 0
	if o.current == g {
		o.schedule(g)
	}
	return nil
}

// shorten sets the end of a grant whose lease at the server may be shorter than here. The next renewal
// sets the lease that was. The caller has the mutex.
func (o *owner) shorten(g *grant, until time.Time) {
	if !until.Before(g.until) {
		return
	}
	g.until = until
	if o.current == g {
		o.schedule(g)
	}
}

// tend renews a grant, or ends it. The timer calls it.
func (o *owner) tend(g *grant) {
	o.mu.Lock()
	end := time.Until(g.until)
	o.mu.Unlock()
	select {
	case g.extending <- struct{}{}:
	case <-time.After(end):
		// A further hold may take longer. If it has set the lease, the timer is set too.
		_, _ = o.held()
		return
	}
	defer func() { <-g.extending }()
	for wasReported := false; ; {
		if held, _ := o.held(); held != g {
			return
		}
		o.mu.Lock()
		lease, until := g.lease, g.until
		ends := g.noRenewal || !until.Before(o.end(g))
		if ends {
			o.schedule(g)
		}
		o.mu.Unlock()
		if ends {
			return
		}
		ctx, cancel := context.WithDeadline(g.ctx, until)
		err := o.prolong(ctx, g, lease, o.locks.report)
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrLost) {
			// The server refuses it, but may not do so for long.
			if !wasReported {
				o.locks.report(err)
				wasReported = true
			}
			select {
			case <-time.After(longestPause):
			case <-ctx.Done():
			}
		}
		cancel()
		if err == nil {
			return
		}
	}
}

// ms returns milliseconds, rounded up because no time may end early, and at least 1.
func ms(d time.Duration) int64 {
	return max(1, int64((d-1)/time.Millisecond)+1)
}

func longer(pause time.Duration) time.Duration {
	return min(2*pause, longestPause)
}
