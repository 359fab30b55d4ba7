package redsync

import (
	"errors"
	"fmt"

	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis-lock/redis-lock/clients/go/internal/dropin"
)

// Errors of this package. A wrong argument is a *redislock.ArgumentError.
var (
	// ErrFailed says that the context ended before the lock was free, or that the lock was granted
	// too late to be of use.
	ErrFailed = errors.New("redsync: failed to acquire the lock")
	// ErrExtendFailed says that the extension took longer than the lease.
	ErrExtendFailed = errors.New("redsync: failed to extend the lock")
	// ErrLockAlreadyExpired says that the mutex wasn't held any more when it was unlocked.
	ErrLockAlreadyExpired = errors.New("redsync: failed to unlock, the lock had expired")
)

// ErrTaken says that somebody else has the lock on the majority of the nodes.
type ErrTaken struct {
	Nodes []int
}

func (e ErrTaken) Error() string {
	return fmt.Sprintf("redsync: the lock is taken on the nodes %v", e.Nodes)
}

// ErrNodeTaken says that somebody else has the lock on one node, or that this mutex hasn't.
type ErrNodeTaken struct {
	Node int
}

func (e ErrNodeTaken) Error() string {
	return fmt.Sprintf("redsync: the lock is taken on node %d", e.Node)
}

// RedisError is the error of one node. It wraps redislock.ErrUnavailable if no server answered.
type RedisError struct {
	Node int
	Err  error
}

func (e RedisError) Error() string {
	return fmt.Sprintf("redsync: node %d: %v", e.Node, e.Err)
}

// Unwrap returns the error of the node.
func (e RedisError) Unwrap() error { return e.Err }

// isRefusal returns true if the server said that this mutex doesn't hold the lock.
func isRefusal(err error) bool {
	return errors.Is(err, redislock.ErrNotAcquired) || dropin.IsGone(err)
}
