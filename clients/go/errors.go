package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Errors of this package. Compare with errors.Is, because most are returned with their cause. Every
// other error is a final error of the server, a redis.Error of go-redis.
var (
	// ErrNotAcquired says that somebody else had the lock for all of the time.
	ErrNotAcquired = errors.New("redislock: the lock was not free in time")
	// ErrLost says that the lock was lost before its release.
	ErrLost = errors.New("redislock: the lock was lost")
	// ErrNotHeld says that a call needs a lock that is held, and it isn't.
	ErrNotHeld = errors.New("redislock: the lock isn't held")
	// ErrDeadlock says that the wait would never end.
	ErrDeadlock = errors.New("redislock: the wait would never end")
	// ErrUnavailable says that no server could do it in time. The cause is wrapped too.
	ErrUnavailable = errors.New("redislock: the server is unavailable")
	// ErrModuleMissing says that the server doesn't know the commands.
	ErrModuleMissing = errors.New("redislock: this server hasn't loaded redis-lock")
	// ErrNotReplicated says that too few replicas acknowledged the grant. It was released again.
	ErrNotReplicated = errors.New("redislock: too few replicas acknowledged the lock")
)

// ArgumentError is the error of a wrong argument. Nothing was sent.
type ArgumentError struct {
	// Argument names the argument, such as "lease".
	Argument string
	// Reason says what the argument must be.
	Reason string
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("redislock: %s must be %s", e.Argument, e.Reason)
}

// noAnswer is a time that passed without a reply.
type noAnswer struct {
	address string
	within  time.Duration
}

func (e *noAnswer) Error() string {
	return fmt.Sprintf("no answer from %s within %v", e.address, e.within)
}

// Unwrap makes errors.Is(err, os.ErrDeadlineExceeded) true.
func (e *noAnswer) Unwrap() error { return os.ErrDeadlineExceeded }

// serverError is a server's error without the token.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks the type as an error of the server, as go-redis does.
func (serverError) RedisError() {}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.As(err, &network) && network.Timeout() ||
		err.Error() == "redis: connection pool timeout"
}

// reply returns the text of a server's error, or false for an error of the client.
func reply(err error) (string, bool) {
	var said redis.Error
	if !errors.As(err, &said) {
		return "", false
	}
	return said.Error(), true
}

// passing are the beginnings of the server's errors that end by themselves.
var passing = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "OOM ", "MISCONF ", "BUSY ", "MOVED ", "ASK ",
	"ERR max number of clients reached", "UNBLOCKED force unblock from blocking operation, instance state changed",
}

// isOutage returns true if the same command may succeed later.
func isOutage(err error) bool {
	text, isReply := reply(err)
	if !isReply {
		return !errors.Is(err, redis.ErrClosed)
	}
	for _, beginning := range passing {
		if strings.HasPrefix(text, beginning) {
			return true
		}
	}
	return false
}

// final returns the error of this package for a server's error, which doesn't show the token.
func final(err error, token secret) error {
	if err == nil {
		return nil
	}
	text, isReply := reply(err)
	switch {
	case !isReply:
		return err
	case strings.HasPrefix(text, "DEADLOCK"):
		return fmt.Errorf("%w: %s", ErrDeadlock, strings.TrimPrefix(text, "DEADLOCK "))
	case strings.HasPrefix(text, "NOREPLICAS"):
		return fmt.Errorf("%w: %s", ErrNotReplicated, strings.TrimPrefix(text, "NOREPLICAS "))
	case strings.HasPrefix(text, "ERR unknown command"):
		return ErrModuleMissing
	case strings.HasPrefix(text, "ERR Protocol error: unauthenticated"):
		// The server's reply to a long command before the password.
		return serverError("NOAUTH Authentication required.")
	case strings.Contains(text, token()):
		return serverError(strings.ReplaceAll(text, token(), "(token)"))
	}
	return err
}

func unavailable(cause error) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, cause)
}
