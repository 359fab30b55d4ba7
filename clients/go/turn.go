package redislock

import "time"

// sight is what the goroutine that has the turn last saw of the lock. From it, the goroutines in line
// know whether they wait for a holder of the lock or for a server.
type sight struct {
	// True if the lock is taken: by this object, or by another owner.
	isTaken bool
	outage  error
}

var taken = sight{isTaken: true}

func outage(err error) sight { return sight{outage: err} }

// sees publishes a sight of the lock.
func (o *owner) sees(s sight) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.look(s)
}

// look is sees for a caller that has the mutex.
func (o *owner) look(s sight) {
	switch {
	case s.outage != nil:
		o.takenAt = time.Time{}
	case s.isTaken || o.sight.isTaken:
		o.takenAt = time.Now()
	}
	o.sight = s
	if o.seen != nil {
		close(o.seen)
		o.seen = nil
	}
}

// watch returns the latest sight, and a channel that is closed at the next one.
func (o *owner) watch() (sight, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = make(chan struct{})
	}
	return o.sight, o.seen
}

// takeTurn waits for the other users of this object, in their order. A try ends at once if they see
// that the lock is taken.
func (s *search) takeTurn() error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	s.waited = true
	for {
		latest, next := s.watch()
		if s.waits {
			// It would lose its place in the order.
			next = nil
		} else if latest.isTaken {
			return ErrNotAcquired
		}
		select {
		case s.turn <- struct{}{}:
			return nil
		case <-next:
		case <-s.ctx.Done():
			return s.overInLine()
		}
	}
}

// overInLine returns the error at the end of a wait for the turn.
func (s *search) overInLine() error {
	s.mu.Lock()
	isRefused := s.sight.isTaken || s.takenAt.After(s.began)
	s.outage = s.sight.outage
	s.mu.Unlock()
	return s.over(isRefused)
}

// patience returns the patience of Acquire.
func (o *owner) patience() patience {
	if o.waitsForever {
		return patience{waits: true}
	}
	return o.within(o.wait)
}

// within returns the patience of a wait with a limit.
func (o *owner) within(wait time.Duration) patience {
	if wait == 0 {
		return o.once()
	}
	return patience{waits: true, limit: wait}
}

// once returns the patience of a try.
func (o *owner) once() patience {
	limit := o.locks.timeout
	if o.replicas > 0 {
		// The server's own time limit ends a little later than it began here.
		limit += confirmWithin
	}
	return patience{limit: limit}
}
