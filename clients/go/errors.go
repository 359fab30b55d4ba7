package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Errors of this package. Compare with errors.Is, because most are returned with their cause. Every
// other error is a final error of the server, a redis.Error of go-redis.
var (
	// ErrNotAcquired says that somebody else had the lock for all of the time.
	ErrNotAcquired = errors.New("redislock: the lock was not free in time")
	// ErrLost says that the grant ended before its release.
	ErrLost = errors.New("redislock: the lock was lost")
	// ErrNotHeld says that the grant was released before, or that an adopted one has ended.
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

// outage is an ErrUnavailable with the server that failed, and the cause.
type outage struct {
	address string
	cause   error
}

func (o *outage) Error() string {
	return fmt.Sprintf("%v: %s: %v", ErrUnavailable, o.address, o.cause)
}

func (o *outage) Unwrap() []error { return []error{ErrUnavailable, o.cause} }

// replyOf returns the text of a server's error, or "" for an error of the driver.
func replyOf(err error) string {
	var said redis.Error
	if !errors.As(err, &said) {
		return ""
	}
	return said.Error()
}

// isReply returns true if a server has replied. A nil is a reply, too.
func isReply(err error) bool { return err == nil || replyOf(err) != "" }

// isLate returns true if no reply came in time, and false if something failed.
func isLate(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// wasSent returns false if an error says that its command was never sent.
func wasSent(err error) bool {
	var network *net.OpError
	isOfDial := errors.As(err, &network) && network.Op == "dial"
	// The driver ends no exchange by a context, only what comes before one.
	isOver := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return !isOfDial && !isOver && !startsWithAny(err.Error(), unconnected)
}

// unconnected are the beginnings of the driver's errors that say that it found no connection.
var unconnected = []string{
	"redis: connection ", "redis: all sentinels", "redis: cluster has no nodes",
}

// passing are the beginnings of the server's errors that end by themselves.
var passing = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "OOM ", "MISCONF ", "BUSY ",
	"MOVED ", "ASK ", "ERR max number of clients reached", "NOREPLICAS Not enough good replicas",
	"UNBLOCKED force unblock from blocking operation, instance state changed",
	"UNBLOCKED a newer connection with this token took over this place",
}

// isOutage returns true if the same command may succeed later, or at another server.
func isOutage(err error) bool {
	if text := replyOf(err); text != "" {
		return startsWithAny(text, passing)
	}
	var network net.Error
	isEnd := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	return errors.As(err, &network) || isEnd || errors.Is(err, context.Canceled) ||
		startsWithAny(err.Error(), unconnected)
}

func startsWithAny(text string, beginnings []string) bool {
	return slices.ContainsFunc(beginnings, func(it string) bool { return strings.HasPrefix(text, it) })
}

// serverError is a server's error without the token.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks the type as an error of the server, as go-redis does.
func (serverError) RedisError() {}

// final returns the error for the caller. Its text never has the token.
func final(err error, token string) error {
	text := replyOf(err)
	switch {
	case strings.HasPrefix(text, "DEADLOCK "):
		return fmt.Errorf("%w: %s", ErrDeadlock, strings.TrimPrefix(text, "DEADLOCK "))
	case strings.HasPrefix(text, "NOREPLICAS "):
		return fmt.Errorf("%w: %s", ErrNotReplicated, strings.TrimPrefix(text, "NOREPLICAS "))
	case strings.HasPrefix(text, "ERR unknown command 'LOCK."):
		return ErrModuleMissing
	case token != "" && strings.Contains(text, token):
		return serverError(strings.ReplaceAll(text, token, "(token)"))
	}
	return err
}
