package redislock

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The longest time without a sign that the server lives, while a call waits.
	signOfLife = 2 * time.Second
	// The most connections to one server for waits and sessions, and how many unused ones stay
	// open. An unused one that is older may have died silently.
	mostWaits, idleWaits = 4096, 8
	idleTime             = 10 * time.Second
	// The most connections to a node of a cluster for commands that are answered at once.
	mostCommands = 32
	// The address that go-redis gives the clients of Sentinel.
	ofSentinel = "FailoverClient"
)

// process sends a command, and returns when it has the reply or has failed.
type process func(ctx context.Context, cmd redis.Cmder) error

// way is how a command is sent.
type way struct {
	process process
	// Returns true if the process ends within an attempt, because it needn't connect. Nil if it may
	// not.
	isPrompt func() bool
}

// servers are reached by clients of go-redis with the settings of the program's client.
type servers struct {
	name string
	// The client for commands that are answered at once: of one server, with the counts of its
	// connections, or of a cluster.
	one     *redis.Client
	stats   func() *redis.PoolStats
	cluster *redis.ClusterClient
	command way
	// The turns of the commands of acquires. There are fewer than connections, so a release never
	// waits behind acquires.
	turns chan struct{}
	// Returns the client for what keeps a connection: waits that block, and sessions.
	waits func() redis.UniversalClient
}

// oneServer is a *redis.Client, or what embeds one.
type oneServer interface {
	Options() *redis.Options
	PoolStats() *redis.PoolStats
	WithTimeout(time.Duration) *redis.Client
}

// manyServers is a *redis.ClusterClient, or what embeds one.
type manyServers interface{ Options() *redis.ClusterOptions }

func newServers(client redis.UniversalClient, attempt, timeout time.Duration) (*servers, error) {
	if pointer := reflect.ValueOf(client); pointer.Kind() == reflect.Pointer && pointer.IsNil() {
		client = nil
	}
	longestWait := signOfLife + attempt + timeout
	switch client := client.(type) {
	case oneServer:
		return newOneServer(client, attempt, longestWait), nil
	case manyServers:
		return newCluster(client.Options(), attempt, longestWait), nil
	}
	return nil, &ArgumentError{"client", "a *redis.Client or a *redis.ClusterClient"}
}

// newOneServer uses the connections of the program's client, except for waits and sessions.
func newOneServer(client oneServer, attempt, longestWait time.Duration) *servers {
	copied := client.WithTimeout(attempt)
	// The options are the copy's own. This library repeats by itself, and counts what got no reply.
	copied.Options().MaxRetries = 0
	of := client.Options()
	s := &servers{
		name: of.Addr, one: copied, stats: client.PoolStats, turns: make(chan struct{}, max(1, of.PoolSize/2)),
	}
	s.command = way{copied.Process, func() bool { return client.PoolStats().IdleConns > 0 }}
	lifetime := of.ConnMaxLifetime
	if of.Addr == ofSentinel {
		// go-redis closes only the program's own connections after a failover.
		s.name, lifetime = "the primary that Sentinel names", signOfLife
	}
	s.waits = sync.OnceValue(func() redis.UniversalClient {
		options := *of
		options.Protocol, options.MaxRetries, options.ContextTimeoutEnabled = 2, -1, false
		options.DialTimeout, options.DialerRetries, options.DialerRetryTimeout = attempt, 1, 1
		options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = longestWait, attempt, longestWait
		options.PoolSize, options.MinIdleConns, options.MaxIdleConns = mostWaits, 0, idleWaits
		options.MaxActiveConns, options.ConnMaxIdleTime, options.ConnMaxLifetime = 0, idleTime, lifetime
		// The program's client changes its own when it connects.
		options.MaintNotificationsConfig = nil
		return redis.NewClient(&options)
	})
	return s
}

// newCluster makes clients of the same settings, because the client of a cluster can't be copied
// with another timeout.
func newCluster(of *redis.ClusterOptions, attempt, longestWait time.Duration) *servers {
	open := func(read time.Duration, size int) *redis.ClusterClient {
		options := *of
		options.Protocol, options.MaxRetries, options.ContextTimeoutEnabled = 2, -1, false
		options.ReadOnly, options.RouteByLatency, options.RouteRandomly = false, false, false
		options.DialTimeout, options.DialerRetries, options.DialerRetryTimeout = attempt, 1, 1
		options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = read, attempt, read
		options.PoolSize, options.MinIdleConns, options.MaxIdleConns = size, 0, idleWaits
		options.MaxActiveConns, options.ConnMaxIdleTime = 0, idleTime
		options.NewClient = counting(of.NewClient)
		return redis.NewClusterClient(&options)
	}
	cluster := open(attempt, mostCommands)
	return &servers{
		name:    "the cluster of " + strings.Join(of.Addrs, ", "),
		cluster: cluster, command: way{process: cluster.Process}, turns: make(chan struct{}, mostCommands/2),
		waits: sync.OnceValue(func() redis.UniversalClient { return open(longestWait, mostWaits) }),
	}
}

// acquire is the way of the commands of acquires that are answered at once.
func (s *servers) acquire() way {
	return way{func(ctx context.Context, cmd redis.Cmder) error {
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
			return s.command.process(ctx, cmd)
		case <-ctx.Done():
			return ctx.Err()
		}
	}, func() bool {
		return len(s.turns) < cap(s.turns) && s.command.isPrompt != nil && s.command.isPrompt()
	}}
}

// wait is the way of the commands that may block.
func (s *servers) wait() way { return way{process: s.waits().Process} }

// lender returns the client that lends connections to the server of a key.
func (s *servers) lender(ctx context.Context, key string) (*redis.Client, error) {
	if cluster, isCluster := s.waits().(*redis.ClusterClient); isCluster {
		return cluster.MasterForKey(ctx, key)
	}
	return s.waits().(*redis.Client), nil
}

// known returns the client for the node of a key in a cluster, or nil if the node isn't known yet.
func (s *servers) known(key string) *redis.Client {
	if s.cluster == nil {
		return nil
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	node, _ := s.cluster.MasterForKey(now, key)
	return node
}

// address returns the address of the server of a key.
func (s *servers) address(key string) string {
	if node := s.known(key); node != nil {
		return node.Options().Addr
	}
	return s.name
}

// failed has a cluster looked at anew after an outage: another node may have the slot.
func (s *servers) failed() {
	if s.cluster != nil {
		s.cluster.ReloadState(context.Background())
		s.waits().(*redis.ClusterClient).ReloadState(context.Background())
	}
}

// doubt uses each unused connection to the server of a key once. Those that died silently are
// closed then, because they get no reply.
func (s *servers) doubt(key string) {
	node, stats := s.one, s.stats
	if known := s.known(key); known != nil {
		node, stats = known, known.PoolStats
	}
	if node == nil {
		return
	}
	for range stats().IdleConns {
		go node.Ping(context.Background())
	}
}

func (s *servers) close() error {
	if s.cluster != nil {
		_ = s.cluster.Close()
	}
	return s.waits().Close()
}

// counting returns a constructor of the clients of a cluster's nodes. A ClusterClient repeats
// commands, and the repeated ones got no reply.
func counting(newClient func(*redis.Options) *redis.Client) func(*redis.Options) *redis.Client {
	return func(options *redis.Options) *redis.Client {
		client := newClient(options)
		client.AddHook(counter{})
		return client
	}
}

type counter struct{}

func (counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return noted(ctx, next(ctx, cmd))
	}
}

func (counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return noted(ctx, next(ctx, cmds))
	}
}

func noted(ctx context.Context, err error) error {
	if c, isOfCall := ctx.Value(callKey{}).(*call); isOfCall && !isReply(err) && wasSent(err) {
		c.unanswered.Add(1)
	}
	return err
}
