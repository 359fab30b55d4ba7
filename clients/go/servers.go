package redislock

import (
	"context"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The longest time without a sign that the server lives, while a call waits.
	signOfLife = 2 * time.Second
	// The most connections to a server, and how many unused ones stay open. An unused one that is
	// older may have died silently.
	mostConnections, mostUnused = 4096, 8
	idleTime                    = 10 * time.Second
	// The most acquires that ask a cluster at once.
	mostTurns = 16
	// The address that go-redis gives the clients of Sentinel.
	ofSentinel = "FailoverClient"
)

// sender sends a command, and returns when it has the reply or has failed.
type sender interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// servers are reached by clients of go-redis with the settings of the program's client.
type servers struct {
	name string
	// The way of commands that are answered at once, and of those among them that acquire.
	prompt   sender
	acquires *queue
	// The way of commands that may block.
	waits redis.UniversalClient
	// The longest times of an attempt, and of a command that blocks.
	attempt, longestWait time.Duration
}

// oneServer is a *redis.Client, or what embeds one.
type oneServer interface {
	Options() *redis.Options
	WithTimeout(time.Duration) *redis.Client
}

// manyServers is a *redis.ClusterClient, or what embeds one.
type manyServers interface{ Options() *redis.ClusterOptions }

func newServers(client redis.UniversalClient, attempt, timeout time.Duration) (*servers, error) {
	if pointer := reflect.ValueOf(client); pointer.Kind() == reflect.Pointer && pointer.IsNil() {
		client = nil
	}
	s := &servers{attempt: attempt, longestWait: signOfLife + attempt + timeout}
	switch client := client.(type) {
	case oneServer:
		// It uses the connections of the program's client. The options are the copy's own.
		prompt, options := client.WithTimeout(attempt), *client.Options()
		prompt.Options().MaxRetries, prompt.Options().ContextTimeoutEnabled = 0, true
		s.name, s.prompt = options.Addr, prompt
		s.acquires = &queue{prompt, make(chan struct{}, max(1, options.PoolSize/2))}
		s.tune(&options, s.longestWait)
		s.waits = redis.NewClient(&options)
	case manyServers:
		// The client of a cluster can't be copied with another timeout.
		of := client.Options()
		s.name, s.prompt = "the cluster of "+strings.Join(of.Addrs, ", "), s.cluster(of, attempt)
		s.acquires = &queue{s.prompt, make(chan struct{}, mostTurns)}
		s.waits = s.cluster(of, s.longestWait)
	default:
		return nil, &ArgumentError{"client", "a *redis.Client or a *redis.ClusterClient"}
	}
	return s, nil
}

// tune sets how a client of this library connects, and how long it waits for a reply.
func (s *servers) tune(o *redis.Options, read time.Duration) {
	// This library repeats by itself, and notes what got no reply.
	o.Protocol, o.MaxRetries, o.ContextTimeoutEnabled = 2, -1, true
	o.DialTimeout, o.DialerRetries, o.DialerRetryTimeout = s.attempt, 1, 1
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = read, s.attempt, s.longestWait
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns = mostConnections, 0, mostUnused
	o.MaxActiveConns, o.ConnMaxIdleTime = 0, idleTime
	// The program's client changes its own when it connects.
	o.MaintNotificationsConfig = nil
	if o.Addr == ofSentinel {
		// go-redis closes only the program's own connections after a failover.
		o.ConnMaxLifetime = signOfLife
	}
}

// cluster returns a client of the same settings.
func (s *servers) cluster(of *redis.ClusterOptions, read time.Duration) *redis.ClusterClient {
	options := *of
	options.ReadOnly, options.RouteByLatency, options.RouteRandomly = false, false, false
	options.NewClient = func(node *redis.Options) *redis.Client {
		s.tune(node, read)
		return of.NewClient(node)
	}
	return redis.NewClusterClient(&options)
}

// queue sends the commands of acquires. It has fewer turns than there are connections, so a release
// never waits behind acquires.
type queue struct {
	sender
	turns chan struct{}
}

func (q *queue) Process(ctx context.Context, cmd redis.Cmder) error {
	select {
	case q.turns <- struct{}{}:
		defer func() { <-q.turns }()
		return q.sender.Process(ctx, cmd)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// session is the connection that the server ties a grant to. It is never repaired: a command that
// is late on a lost connection could move the tie back there, and its close releases the lock.
type session struct {
	*redis.Conn
	// The client that has this connection alone.
	client *redis.Client
}

// session returns a connection to the server of a key.
func (s *servers) session(ctx context.Context, key string) (*session, error) {
	node, err := s.node(ctx, key)
	if err != nil {
		return nil, &outage{s.name, err}
	}
	options := *node.Options()
	// A reply that is late is waited for as long as the grant may be held.
	s.tune(&options, -1)
	options.PoolSize, options.ConnMaxLifetime = 1, 0
	client := redis.NewClient(&options)
	return &session{client.Conn(), client}, nil
}

// close ends the connection. The close of a redis.Conn returns it to its pool.
func (s *session) close() { _ = s.client.Close() }

func (s *servers) node(ctx context.Context, key string) (*redis.Client, error) {
	if cluster, isCluster := s.prompt.(*redis.ClusterClient); isCluster {
		return cluster.MasterForKey(ctx, key)
	}
	return s.waits.(*redis.Client), nil
}

// address returns the address of the server of a key, or the name of all if that isn't known yet.
func (s *servers) address(key string) string {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	node, err := s.node(now, key)
	if err != nil {
		return s.name
	}
	return node.Options().Addr
}

// failed has a cluster looked at anew after an outage: another node may have the slot.
func (s *servers) failed() {
	for _, client := range []sender{s.prompt, s.waits} {
		if cluster, isCluster := client.(*redis.ClusterClient); isCluster {
			cluster.ReloadState(context.Background())
		}
	}
}

// close closes the connections that aren't the program's.
func (s *servers) close() error {
	if cluster, isCluster := s.prompt.(*redis.ClusterClient); isCluster {
		_ = cluster.Close()
	}
	return s.waits.Close()
}
