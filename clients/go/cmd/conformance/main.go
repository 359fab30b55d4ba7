// Command conformance is the driver of the conformance suite. It executes orders, each a line of
// JSON, with this library.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/mna/redisc"

	"redislock"
)

type order struct {
	ID        int64    `json:"id"`
	Do        string   `json:"do"`
	Servers   []string `json:"servers"`
	Cluster   bool     `json:"cluster"`
	Lock      string   `json:"lock"`
	Keys      []string `json:"keys"`
	LeaseMs   int64    `json:"lease_ms"`
	Renew     bool     `json:"renew"`
	Shared    bool     `json:"shared"`
	Limit     int      `json:"limit"`
	Permits   int      `json:"permits"`
	Session   bool     `json:"session"`
	KeepMs    int64    `json:"keep_ms"`
	Token     string   `json:"token"`
	WaitMs    *int64   `json:"wait_ms"`
	CancelsID int64    `json:"of"`
}

type answer map[string]interface{}

type driver struct {
	mu      sync.Mutex
	locks   *redislock.Locks
	named   map[string]*redislock.Lock
	cancels map[int64]context.CancelFunc
}

var saying sync.Mutex

func say(line answer) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	saying.Lock()
	defer saying.Unlock()
	// The reader may be gone, and then this driver ends soon as well.
	_, _ = os.Stdout.Write(append(text, '\n'))
}

func main() {
	d := &driver{named: map[string]*redislock.Lock{}, cancels: map[int64]context.CancelFunc{}}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.cancels[o.ID] = cancel
		d.mu.Unlock()
		go func() {
			line, err := d.obey(ctx, o)
			if err != nil {
				line = answer{"error": nameOf(err), "text": err.Error()}
			}
			line["id"] = o.ID
			say(line)
		}()
	}
	// The held locks are not released.
	os.Exit(0)
}

func nameOf(err error) string {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, redislock.ErrCancelled):
		return "cancelled"
	case errors.Is(err, redislock.ErrDeadlock):
		return "deadlock"
	}
	return "other"
}

func (d *driver) obey(ctx context.Context, o order) (answer, error) {
	switch o.Do {
	case "connect":
		source, err := connect(o)
		d.locks = redislock.New(source)
		return answer{"ok": true}, err
	case "lock":
		return d.lock(o), nil
	case "cancel":
		d.mu.Lock()
		cancel := d.cancels[o.CancelsID]
		d.mu.Unlock()
		cancel()
		return answer{"ok": true}, nil
	}
	d.mu.Lock()
	lock := d.named[o.Lock]
	d.mu.Unlock()
	switch o.Do {
	case "acquire":
		return acquire(ctx, lock, o.WaitMs)
	case "release":
		held, err := lock.Release()
		return answer{"ok": held}, err
	case "extend":
		held, err := lock.Extend(milliseconds(o.LeaseMs))
		return answer{"ok": held}, err
	case "left":
		left, err := lock.Left()
		return answer{"ok": true, "ms": left.Milliseconds()}, err
	case "state":
		return answer{"ok": true, "lost": lock.IsLost(), "fence": lock.Fence(), "token": lock.Token()}, nil
	}
	return nil, errors.New("no such order: " + o.Do)
}

func connect(o order) (redislock.Source, error) {
	dial := func(address string, options ...redis.DialOption) (*redis.Pool, error) {
		return &redis.Pool{
			MaxIdle: 10,
			Dial:    func() (redis.Conn, error) { return redis.Dial("tcp", address, options...) },
		}, nil
	}
	if !o.Cluster {
		return dial(o.Servers[0], redis.DialConnectTimeout(time.Second))
	}
	cluster := &redisc.Cluster{
		StartupNodes: o.Servers,
		DialOptions:  []redis.DialOption{redis.DialConnectTimeout(time.Second)},
		CreatePool:   dial,
	}
	return cluster, cluster.Refresh()
}

func (d *driver) lock(o order) answer {
	lock := d.locks.Lock(redislock.Options{
		Keys: o.Keys, Lease: milliseconds(o.LeaseMs), NoRenewal: !o.Renew, Token: o.Token, Shared: o.Shared,
		Limit: o.Limit, Permits: o.Permits, Session: o.Session, Keep: milliseconds(o.KeepMs),
		OnLost: func() { say(answer{"event": "lost", "lock": o.Lock}) },
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.named[o.Lock] = lock
	return answer{"ok": true, "token": lock.Token()}
}

func acquire(ctx context.Context, lock *redislock.Lock, waitMs *int64) (answer, error) {
	var fence int64
	var err error
	got := true
	switch {
	case waitMs == nil:
		fence, err = lock.Acquire(ctx)
	case *waitMs == 0:
		fence, got, err = lock.TryAcquire(ctx)
	default:
		fence, got, err = lock.AcquireWithin(ctx, milliseconds(*waitMs))
	}
	if err != nil || !got {
		return answer{"ok": false}, err
	}
	return answer{"ok": true, "fence": fence}, nil
}

func milliseconds(count int64) time.Duration {
	return time.Duration(count) * time.Millisecond
}
