// Command conformance is the driver of the conformance suite. It executes orders, each a line of
// JSON, with this library.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

// head is the part of an order that every one has.
type head struct {
	ID, Of   any
	Do, Lock string
}

// order is an order. It can't be read if a value is one that no Go type has.
type order struct {
	head
	Servers, Keys                      []string
	Sentinel, Username, Password, List string
	Cluster, Masters, Shared, Session  bool
	Renew                              *bool
	Data, Fail                         *string
	Limit, Permits, Replicas           *int
	Tasks                              int
	Seconds                            float64
	Lease                              *ms `json:"lease_ms"`
	Wait                               *ms `json:"wait_ms"`
	Keep                               *ms `json:"keep_ms"`
	MaxHold                            *ms `json:"max_hold_ms"`
	AtLeast                            *ms `json:"at_least_ms"`
	Margin                             *ms `json:"margin_ms"`
	CommandTimeout                     *ms `json:"command_timeout_ms"`
	Work                               ms  `json:"work_ms"`
	MostWait                           ms  `json:"most_wait_ms"`
}

var errUnrepresentable = errors.New("no value of the Go type")

// ms is a time that is written as milliseconds.
type ms struct{ time.Duration }

func (m *ms) UnmarshalJSON(text []byte) error {
	var number float64
	if err := json.Unmarshal(text, &number); err != nil || math.Abs(number) >= math.MaxInt64/1e6 {
		return errUnrepresentable
	}
	m.Duration = time.Duration(number * 1e6)
	return nil
}

type answer map[string]any

type driver struct {
	client redis.UniversalClient
	// masters executes all other orders if the servers are independent masters.
	masters *masters
	locks   *redislock.Locks
	mu      sync.Mutex
	named   map[string]*redislock.Lock
	// The latest grant of each lock.
	grants  map[string]*redislock.Grant
	cancels map[any]context.CancelFunc
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
	d := &driver{
		named: map[string]*redislock.Lock{}, grants: map[string]*redislock.Grant{},
		cancels: map[any]context.CancelFunc{},
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var h head
		var o order
		if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
			panic(err)
		}
		unread := json.Unmarshal(lines.Bytes(), &o)
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.cancels[h.ID] = cancel
		d.mu.Unlock()
		obey := func() {
			line, err := answer(nil), errUnrepresentable
			if unread == nil {
				line, err = d.obey(ctx, o)
			}
			if err != nil {
				line = answer{"error": nameOf(err), "text": err.Error()}
			}
			line["id"] = h.ID
			say(line)
		}
		if h.Do == "connect" || h.Do == "lock" {
			obey()
		} else {
			go obey()
		}
	}
	// The held locks are not released.
	os.Exit(0)
}

// failure is the error of a block itself.
type failure string

func (f failure) Error() string { return string(f) }

func nameOf(err error) string {
	var argument *redislock.ArgumentError
	var own failure
	names := []struct {
		is   bool
		name string
	}{
		{errors.As(err, &own), "failed"},
		{errors.As(err, &argument), "argument"},
		{errors.Is(err, errUnrepresentable), "unrepresentable"},
		{errors.Is(err, redislock.ErrUnavailable), "unavailable"},
		{errors.Is(err, redislock.ErrNotAcquired), "not_acquired"},
		{errors.Is(err, redislock.ErrLost), "lost"},
		{errors.Is(err, redislock.ErrNotHeld), "misuse"},
		{errors.Is(err, context.Canceled), "cancelled"},
		{errors.Is(err, redislock.ErrDeadlock), "deadlock"},
		{errors.Is(err, redislock.ErrModuleMissing), "module_missing"},
		{errors.Is(err, redislock.ErrNotReplicated), "not_replicated"},
	}
	for _, each := range names {
		if each.is {
			return each.name
		}
	}
	for _, code := range []string{"NOPERM", "NOAUTH", "WRONGPASS"} {
		if strings.Contains(err.Error(), code) {
			return "denied"
		}
	}
	return "other"
}

func (d *driver) obey(ctx context.Context, o order) (answer, error) {
	if d.masters != nil {
		return d.masters.obey(ctx, o)
	}
	d.mu.Lock()
	lock, grant, cancel := d.named[o.Lock], d.grants[o.Lock], d.cancels[o.Of]
	d.mu.Unlock()
	ok := answer{"ok": true}
	switch o.Do {
	case "connect":
		return ok, d.connect(o)
	case "lock":
		return ok, d.lock(o)
	case "acquire":
		return d.acquire(ctx, lock, o)
	case "cancel":
		cancel()
		return ok, nil
	case "block":
		return d.block(ctx, lock, o)
	case "write":
		return d.write(ctx, lock, o)
	case "storm":
		return storm(ctx, lock, o)
	case "release_all":
		count, err := d.locks.ReleaseAll(ctx)
		return answer{"ok": true, "count": count}, err
	case "texts":
		return answer{"ok": true, "text": texts(lock) + texts(d.locks) + texts(grant)}, nil
	}
	if grant == nil {
		answers := map[string]answer{
			"left": {"ok": true, "ms": 0}, "owned": {"ok": false},
			"state": {"ok": true, "lost": false, "fence": nil},
		}
		if line := answers[o.Do]; line != nil {
			return line, nil
		}
		return nil, redislock.ErrNotHeld
	}
	return withGrant(ctx, grant, o)
}

func withGrant(ctx context.Context, grant *redislock.Grant, o order) (answer, error) {
	switch o.Do {
	case "release":
		err := grant.Release(ctx)
		return answer{"ok": err == nil}, unlessLost(err)
	case "extend":
		err := grant.Extend(ctx, o.Lease.Duration)
		return answer{"ok": err == nil}, unlessLost(err)
	case "left":
		return answer{"ok": true, "ms": grant.Left().Milliseconds()}, nil
	case "owned":
		owned, err := grant.Owned(ctx)
		return answer{"ok": owned}, err
	case "state":
		line := answer{"ok": true, "fence": grant.Fence(), "token": grant.Token()}
		line["lost"] = grant.IsLost()
		return line, nil
	}
	return nil, errors.New("no such order: " + o.Do)
}

// unlessLost returns nil for a loss, which the answer's "ok" tells.
func unlessLost(err error) error {
	if errors.Is(err, redislock.ErrLost) {
		return nil
	}
	return err
}

func texts(value any) string {
	text, err := json.Marshal(value)
	return fmt.Sprintf("%v %+v %#v %s %v\n", value, value, value, text, err)
}

func (d *driver) connect(o order) (err error) {
	if o.Masters {
		d.masters = connectMasters(o.Servers)
		return nil
	}
	if !o.Cluster && o.Sentinel == "" {
		// Several addresses would be those of a cluster.
		o.Servers = o.Servers[:1]
	}
	observer := redislock.Observer{
		Waited: func(lock *redislock.Lock, waited time.Duration, outcome redislock.Outcome) {
			length := waited.Milliseconds()
			say(answer{"event": "waited", "lock": d.nameOf(lock), "ms": length, "outcome": outcome})
		},
		Granted: func(grant *redislock.Grant) {
			say(answer{"event": "granted", "lock": d.nameOf(grant.Lock())})
		},
		Unavailable: func(err error) { say(answer{"event": "unavailable", "text": err.Error()}) },
	}
	with := []redislock.LocksOption{redislock.WithObserver(observer)}
	if o.CommandTimeout != nil {
		with = append(with, redislock.WithCommandTimeout(o.CommandTimeout.Duration))
	}
	d.client = redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: o.Servers, MasterName: o.Sentinel, IsClusterMode: o.Cluster,
		Username: o.Username, Password: o.Password,
	})
	d.locks, err = redislock.New(d.client, with...)
	return err
}

func (d *driver) nameOf(lock *redislock.Lock) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, named := range d.named {
		if named == lock {
			return name
		}
	}
	return ""
}

func (d *driver) lock(o order) error {
	lock, err := d.locks.LockAll(o.Keys, options(o)...)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.named[o.Lock] = lock
	return nil
}

func options(o order) []redislock.Option {
	with := []redislock.Option{
		redislock.WithOnLost(func(*redislock.Grant) {
			say(answer{"event": "lost", "lock": o.Lock})
		}),
	}
	// The key of an option that the order lacks is nil.
	times := map[*ms]func(time.Duration) redislock.Option{
		o.Lease: redislock.WithLease, o.Wait: redislock.WithWait, o.Keep: redislock.WithKeep,
		o.MaxHold: redislock.WithMaxHold, o.AtLeast: redislock.WithAtLeast,
		o.Margin: redislock.WithMargin,
	}
	for time, option := range times {
		if time != nil {
			with = append(with, option(time.Duration))
		}
	}
	counts := map[*int]func(int) redislock.Option{
		o.Limit: redislock.WithLimit, o.Permits: redislock.WithPermits,
		o.Replicas: redislock.WithReplicas,
	}
	for count, option := range counts {
		if count != nil {
			with = append(with, option(*count))
		}
	}
	if o.Data != nil {
		with = append(with, redislock.WithData(*o.Data))
	}
	if o.Renew != nil && !*o.Renew {
		with = append(with, redislock.WithoutRenewal())
	}
	if o.Shared {
		with = append(with, redislock.WithShared())
	}
	if o.Session {
		with = append(with, redislock.WithSession())
	}
	return with
}

func (d *driver) acquire(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	acquire := lock.Acquire
	if o.Wait != nil {
		acquire = func(ctx context.Context) (*redislock.Grant, error) {
			return lock.AcquireWithin(ctx, o.Wait.Duration)
		}
	}
	grant, err := acquire(ctx)
	switch {
	case errors.Is(err, redislock.ErrNotAcquired):
		return answer{"ok": false}, nil
	case err != nil:
		return nil, err
	}
	d.keep(o.Lock, grant)
	return answer{"ok": true, "fence": grant.Fence(), "token": grant.Token()}, nil
}

func (d *driver) keep(name string, grant *redislock.Grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grants[name] = grant
}

func (d *driver) block(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	var entered int64
	work := func(_ context.Context, grant *redislock.Grant) error {
		entered = grant.Fence()
		d.keep(o.Lock, grant)
		say(answer{"event": "in", "lock": o.Lock})
		time.Sleep(o.Work.Duration)
		if o.Fail != nil {
			return failure(*o.Fail)
		}
		return nil
	}
	err := lock.DoWithin(ctx, o.Wait.Duration, work)
	return answer{"ok": true, "fence": entered}, err
}

// write appends the fence to a list until the loss ends the block.
func (d *driver) write(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	work := func(ctx context.Context, grant *redislock.Grant) error {
		for ctx.Err() == nil {
			if err := d.client.RPush(ctx, o.List, grant.Fence()).Err(); err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		return ctx.Err()
	}
	return answer{"ok": true}, lock.DoWithin(ctx, o.Wait.Duration, work)
}

// storm has many goroutines acquire a lock with short limits, again and again.
func storm(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	var mu sync.Mutex
	// The times of releases. The first one stands for none.
	times := []time.Duration{0}
	until := time.Now().Add(time.Duration(o.Seconds * float64(time.Second)))
	acquire := func() error {
		grant, err := lock.AcquireWithin(ctx, rand.N(o.MostWait.Duration))
		switch {
		case errors.Is(err, redislock.ErrNotAcquired), errors.Is(err, redislock.ErrUnavailable):
			return nil
		case err != nil:
			return err
		}
		time.Sleep(time.Millisecond)
		began := time.Now()
		err = grant.Release(ctx)
		mu.Lock()
		defer mu.Unlock()
		times = append(times, time.Since(began))
		return err
	}
	failures := make(chan error)
	for range o.Tasks {
		go func() {
			var failed error
			for failed == nil && time.Now().Before(until) {
				failed = acquire()
			}
			failures <- failed
		}()
	}
	var failed error
	for range o.Tasks {
		failed = errors.Join(failed, <-failures)
	}
	slices.Sort(times)
	p99 := times[len(times)*99/100].Milliseconds()
	return answer{"ok": true, "grants": len(times) - 1, "release_p99_ms": p99}, failed
}
