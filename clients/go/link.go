package redislock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The most connections for commands, to each node. A command is short, so goroutines share them.
	poolSize = 10
	// The lifetime of connections to a primary that Sentinel names. A new one asks Sentinel anew.
	followEvery = time.Second
	// The address that go-redis gives the clients of Sentinel.
	ofSentinel = "FailoverClient"
	// The time for a command that is written behind another one.
	farewellWithin = 50 * time.Millisecond
)

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// link is the way to the servers: connections of its own, with the settings of the user's client.
type link struct {
	// Makes a client with a pool of this size.
	open     func(size int) redis.UniversalClient
	shared   redis.UniversalClient
	blocking *blocking
	// The longest time of an attempt.
	attempt time.Duration
	// Names the servers in errors.
	address string
	follows bool

	mu    sync.Mutex
	wires map[*wire]struct{}
	// The address of the newest primary that Sentinel named.
	primary string

	*notices
}

func newLink(client redis.UniversalClient, timeout time.Duration) (*link, error) {
	l := &link{attempt: min(timeout, attemptWithin), wires: map[*wire]struct{}{}}
	// The context of each command ends it, so this is for connections without one.
	longest := timeout + 2*confirmWithin
	switch client := client.(type) {
	case interface{ Options() *redis.Options }:
		o := client.Options()
		l.follows = o.Addr == ofSentinel
		l.address = o.Addr
		lifetime := o.ConnMaxLifetime
		if l.follows {
			l.address, lifetime = "the primary that Sentinel names", followEvery
		}
		l.open = func(size int) redis.UniversalClient {
			return redis.NewClient(&redis.Options{
				Network: o.Network, Addr: o.Addr, DB: o.DB, ClientName: o.ClientName, OnConnect: o.OnConnect,
				Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
				CredentialsProviderContext:   o.CredentialsProviderContext,
				StreamingCredentialsProvider: o.StreamingCredentialsProvider,
				TLSConfig:                    o.TLSConfig, DisableIdentity: o.DisableIdentity, IdentitySuffix: o.IdentitySuffix,
				ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: lifetime,
				Dialer: l.dialer(o.Dialer), Protocol: 2, MaxRetries: -1, DialerRetries: 1, DialerRetryTimeout: 1,
				DialTimeout: l.attempt, ReadTimeout: longest, WriteTimeout: longest, PoolTimeout: longest,
				ContextTimeoutEnabled: true, PoolSize: size,
			})
		}
	case interface{ Options() *redis.ClusterOptions }:
		o := client.Options()
		l.address = "the cluster of " + strings.Join(o.Addrs, ", ")
		dialNode := o.Dialer
		if dialNode == nil {
			dialNode = redis.NewDialer(&redis.Options{DialTimeout: l.attempt, TLSConfig: o.TLSConfig})
		}
		l.open = func(size int) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: o.Addrs, ClusterSlots: o.ClusterSlots, ClientName: o.ClientName, OnConnect: o.OnConnect,
				Username: o.Username, Password: o.Password, CredentialsProvider: o.CredentialsProvider,
				CredentialsProviderContext:   o.CredentialsProviderContext,
				StreamingCredentialsProvider: o.StreamingCredentialsProvider,
				TLSConfig:                    o.TLSConfig, DisableIdentity: o.DisableIdentity, IdentitySuffix: o.IdentitySuffix,
				ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
				Dialer: l.dialer(dialNode), Protocol: 2, MaxRetries: -1, DialerRetries: 1, DialerRetryTimeout: 1,
				DialTimeout: l.attempt, ReadTimeout: longest, WriteTimeout: longest, PoolTimeout: longest,
				ContextTimeoutEnabled: true, PoolSize: size,
			})
		}
	default:
		return nil, &ArgumentError{"client", "a *redis.Client or a *redis.ClusterClient"}
	}
	l.shared = l.open(poolSize)
	var blocks redis.UniversalClient
	if _, isOne := client.(*redis.Client); isOne && !l.follows {
		blocks = l.open(blockingSize)
	}
	l.blocking = newBlocking(blocks)
	l.notices = newNotices(l.shared, l.attempt)
	return l, nil
}

func (l *link) close() error {
	l.notices.close()
	l.blocking.close()
	return l.shared.Close()
}

// do sends a command, and returns its reply.
func (l *link) do(ctx context.Context, client redis.UniversalClient, c command) (any, error) {
	sent := time.Now()
	var reply any
	var err error
	for {
		cmd := redis.NewCmd(ctx, c.words...)
		cmd.SetFirstKeyPos(c.key)
		_ = client.Process(ctx, cmd)
		reply, err = cmd.Result()
		// A connection that has ended took nothing, and leaves the pool.
		if !errors.Is(err, errEnded) || ctx.Err() != nil {
			break
		}
	}
	switch {
	case err == nil:
		return reply, nil
	case err == redis.Nil:
		return nil, nil
	case isTimeout(err):
		err = l.noAnswer(time.Since(sent))
	}
	l.leaveNode(client, err)
	return nil, err
}

func (l *link) noAnswer(within time.Duration) error {
	return &noAnswer{l.address, within.Round(time.Millisecond)}
}

// isUnsent returns true if no server can have carried out a command with this error: the command was
// refused, or there was no connection. The client of a cluster may have sent it before, to another node.
func (l *link) isUnsent(err error) bool {
	if !isOutage(err) {
		return true
	}
	if l.isCluster() {
		return false
	}
	var network *net.OpError
	_, isReply := reply(err)
	return isReply || errors.As(err, &network) && network.Op == "dial"
}

// leaveNode drops what is known of a node that says it isn't the right one, or is gone.
func (l *link) leaveNode(client redis.UniversalClient, err error) {
	if !isOutage(err) {
		return
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.ReloadState(context.Background())
	}
	if text, _ := reply(err); strings.HasPrefix(text, "READONLY") {
		l.hangUp(func(*wire) bool { return l.follows })
	}
}

// dialer returns a dialer that ends with its context, even if the one below doesn't, and that
// remembers the connections.
func (l *link) dialer(below dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		type dialled struct {
			conn net.Conn
			err  error
		}
		done := make(chan dialled, 1)
		go func() {
			conn, err := below(ctx, network, address)
			done <- dialled{conn, err}
		}()
		select {
		case d := <-done:
			if d.err != nil {
				return nil, d.err
			}
			return l.remember(d.conn), nil
		case <-ctx.Done():
			go func() {
				if d := <-done; d.err == nil {
					_ = d.conn.Close()
				}
			}()
			return nil, ctx.Err()
		}
	}
}

// remember adds a connection. If Sentinel named a new primary, all connections to the old one end.
func (l *link) remember(conn net.Conn) *wire {
	w := &wire{Conn: conn, link: l, address: conn.RemoteAddr().String()}
	l.mu.Lock()
	l.wires[w] = struct{}{}
	isNew := l.follows && l.primary != w.address
	l.primary = w.address
	l.mu.Unlock()
	if isNew {
		l.hangUp(func(other *wire) bool { return other.address != w.address })
	}
	return w
}

func (l *link) hangUp(chosen func(*wire) bool) {
	l.mu.Lock()
	var found []*wire
	for w := range l.wires {
		if chosen(w) {
			found = append(found, w)
		}
	}
	l.mu.Unlock()
	for _, w := range found {
		_ = w.Close()
	}
}

// undo writes commands behind each command with this token that wasn't answered, and closes those
// connections, so that nobody waits for the reply any more. A server that stood still can't carry
// out the first command alone. Connections in their handshake are closed too.
func (l *link) undo(token secret, commands ...command) {
	l.hangUp(func(w *wire) bool {
		ends, isOwn := w.endFor(token)
		if isOwn {
			w.sendLast(commands)
		}
		return ends
	})
}

// encode returns a command in the server's protocol.
func encode(words []any) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, each := range words {
		b.Write(word(fmt.Sprint(each)))
	}
	return b.Bytes()
}

// word returns one word of a command in the server's protocol.
func word(text string) []byte {
	return fmt.Appendf(nil, "$%d\r\n%s\r\n", len(text), text)
}

// errEnded says that undo has ended the connection.
var errEnded = fmt.Errorf("redislock: the connection has ended: %w", net.ErrClosed)

// wire is a connection that knows what was written and not answered.
type wire struct {
	net.Conn
	link    *link
	address string
	// Held by the goroutine that writes.
	writing sync.Mutex

	mu         sync.Mutex
	unanswered []byte
	// True once undo has chosen it. The pool may give it out again before it is closed, and a further
	// command would get the reply of another one.
	isEnded bool
}

func (w *wire) Write(b []byte) (int, error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	isEnded := w.isEnded
	if !isEnded {
		w.unanswered = append(w.unanswered, b...)
	}
	w.mu.Unlock()
	if isEnded {
		return 0, errEnded
	}
	return w.Conn.Write(b)
}

// endFor refuses further commands if one with this token wasn't answered, and then returns true twice.
// A connection in its handshake ends too.
func (w *wire) endFor(token secret) (ends, isOwn bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	isOwn = bytes.Contains(w.unanswered, word(token()))
	ends = isOwn || len(w.unanswered) > 0 && !bytes.Contains(w.unanswered, []byte("LOCK."))
	w.isEnded = w.isEnded || ends
	return ends, isOwn
}

// sendLast writes commands behind the one that is being written.
func (w *wire) sendLast(commands []command) {
	_ = w.SetWriteDeadline(time.Now().Add(farewellWithin))
	w.writing.Lock()
	defer w.writing.Unlock()
	for _, c := range commands {
		_, _ = w.Conn.Write(encode(c.words))
	}
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.mu.Lock()
		w.unanswered = w.unanswered[:0]
		w.mu.Unlock()
	}
	return n, err
}

func (w *wire) Close() error {
	w.link.mu.Lock()
	delete(w.link.wires, w)
	w.link.mu.Unlock()
	if err := w.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
