package redislock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// link is a connection that was lent.
type link struct {
	lender *redis.Client
	conn   *redis.Conn
	// True if its last command got a reply, so the next command may use it. After READONLY go-redis
	// sends nothing more by it.
	isClean bool
	// The time after which no command of it can still arrive at the server.
	settledAt time.Time
}

// tie keeps the connections of a session while the grant is held.
//
// The server ties the grant to the connection of the latest EXTEND, and releases the lock when that
// one closes. A command without a reply may arrive late and move the tie back. So its connection
// stays open for a lease, and until the server has moved the tie to another one.
type tie struct {
	servers *servers
	key     string
	lease   time.Duration

	mu sync.Mutex
	// The connections that no command uses now.
	links  []link
	isOver bool
}

// process sends a command by the latest connection that may be used, or by a new one.
func (t *tie) process(ctx context.Context, cmd redis.Cmder) error {
	lender, err := t.servers.lender(ctx, t.key)
	if err != nil {
		return err
	}
	l := t.take(lender)
	err = l.conn.Process(ctx, cmd)
	l.isClean, l.settledAt = isReply(err) && !isOfReplica(err), time.Now()
	if !isReply(err) {
		l.settledAt = l.settledAt.Add(t.lease)
	}
	t.keep(l)
	return err
}

func (t *tie) take(lender *redis.Client) link {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.links) - 1; i >= 0; i-- {
		if l := t.links[i]; l.isClean && l.lender == lender {
			t.links = append(t.links[:i], t.links[i+1:]...)
			return l
		}
	}
	return link{lender: lender, conn: lender.Conn()}
}

func (t *tie) keep(l link) {
	t.mu.Lock()
	t.links = append(t.links, l)
	isOver := t.isOver
	t.mu.Unlock()
	if isOver {
		t.cut()
	}
}

// moved closes the connections whose commands arrived before the one that moved the tie.
func (t *tie) moved(askedAt time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var kept []link
	for _, l := range t.links {
		if l.settledAt.Before(askedAt) {
			go l.cut()
		} else {
			kept = append(kept, l)
		}
	}
	t.links = kept
}

// cut closes a connection. Close alone would return it to its pool open, and so with what is tied
// to it.
func (l link) cut() {
	if l.isClean {
		ctx := context.Background()
		_ = l.conn.Process(ctx, redis.NewCmd(ctx, "QUIT"))
	}
	_ = l.conn.Close()
}

// close returns the connections, because the server has released the lock.
func (t *tie) close() {
	for _, l := range t.end() {
		_ = l.conn.Close()
	}
}

// cut closes the connections. Otherwise the server would go on renewing the lock.
func (t *tie) cut() {
	for _, l := range t.end() {
		go l.cut()
	}
}

func (t *tie) end() []link {
	t.mu.Lock()
	defer t.mu.Unlock()
	links := t.links
	t.isOver, t.links = true, nil
	return links
}
