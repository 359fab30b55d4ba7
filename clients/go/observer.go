package redislock

import (
	"log/slog"
	"time"
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
	Granted func(grant *Grant)
	// Lost is called once for each loss, in the background.
	Lost func(grant *Grant)
	// Unavailable is called once for each outage that ends no call: while a call waits without a
	// limit, or in the background. Default: a warning of log/slog.
	Unavailable func(err error)
}

// warn is the default of Unavailable.
func warn(err error) { slog.Warn("redislock", "error", err) }

// tell calls a function of the program, unless it is nil.
func tell[T any](hook func(T), fact T) {
	if hook != nil {
		protect(func() { hook(fact) })
	}
}

// protect calls a function of the program, and logs its panic.
func protect(hook func()) {
	defer func() {
		if caught := recover(); caught != nil {
			slog.Error("redislock: a hook panicked", "panic", caught)
		}
	}()
	hook()
}
