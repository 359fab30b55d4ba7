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

// number is a number of an order, which may be one that no Go type has.
type number struct{ json.RawMessage }

type order struct {
	ID               int64    `json:"id"`
	Do               string   `json:"do"`
	Servers          []string `json:"servers"`
	Cluster          bool     `json:"cluster"`
	Sentinel         string   `json:"sentinel"`
	Username         string   `json:"username"`
	Password         string   `json:"password"`
	CommandTimeoutMs number   `json:"command_timeout_ms"`
	List             string   `json:"list"`
	Tasks            int      `json:"tasks"`
	Seconds          float64  `json:"seconds"`
	MostWaitMs       float64  `json:"most_wait_ms"`
	Lock             string   `json:"lock"`
	Keys             []any    `json:"keys"`
	LeaseMs          number   `json:"lease_ms"`
	WaitMs           number   `json:"wait_ms"`
	KeepMs           number   `json:"keep_ms"`
	MarginMs         number   `json:"margin_ms"`
	MaxHoldMs        number   `json:"max_hold_ms"`
	AtLeastMs        number   `json:"at_least_ms"`
	WorkMs           number   `json:"work_ms"`
	Limit            number   `json:"limit"`
	Permits          number   `json:"permits"`
	Replicas         number   `json:"replicas"`
	Renew            *bool    `json:"renew"`
	Shared           bool     `json:"shared"`
	Session          bool     `json:"session"`
	Data             *string  `json:"data"`
	Fail             *string  `json:"fail"`
	CancelsID        int64    `json:"of"`
}

var errUnrepresentable = errors.New("no value of the Go type")

// isSet returns true if the order has this number.
func (n number) isSet() bool { return len(n.RawMessage) > 0 && string(n.RawMessage) != "null" }

func (n number) within(most float64) (float64, error) {
	var value float64
	if err := json.Unmarshal(n.RawMessage, &value); err != nil || math.Abs(value) >= most {
		return 0, errUnrepresentable
	}
	return value, nil
}

func (n number) duration() (time.Duration, error) {
	ms, err := n.within(math.MaxInt64 / 1e6)
	return time.Duration(ms * 1e6), err
}

func (n number) count() (int, error) {
	count, err := n.within(math.MaxInt64)
	if count != math.Trunc(count) {
		return 0, errUnrepresentable
	}
	return int(count), err
}

type answer map[string]any

type driver struct {
	client redis.UniversalClient
	locks  *redislock.Locks
	mu     sync.Mutex
	named  map[string]*redislock.Lock
	// The latest grant of each lock.
	grants  map[string]*redislock.Grant
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
	d := &driver{
		named: map[string]*redislock.Lock{}, grants: map[string]*redislock.Grant{},
		cancels: map[int64]context.CancelFunc{},
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			say(answer{"id": o.ID, "error": "unrepresentable", "text": err.Error()})
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.cancels[o.ID] = cancel
		d.mu.Unlock()
		obey := func() {
			line, err := d.obey(ctx, o)
			if err != nil {
				line = answer{"error": nameOf(err), "text": err.Error()}
			}
			line["id"] = o.ID
			say(line)
		}
		if o.Do == "connect" || o.Do == "lock" {
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
	d.mu.Lock()
	lock, grant, cancel := d.named[o.Lock], d.grants[o.Lock], d.cancels[o.CancelsID]
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
			"left": {"ok": true, "ms": 0}, "owned": {"ok": false}, "state": {"ok": true, "lost": false, "fence": nil},
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
		lease, err := o.LeaseMs.duration()
		if err == nil {
			err = grant.Extend(ctx, lease)
		}
		return answer{"ok": err == nil}, unlessLost(err)
	case "left":
		return answer{"ok": true, "ms": grant.Left().Milliseconds()}, nil
	case "owned":
		owned, err := grant.Owned(ctx)
		return answer{"ok": owned}, err
	case "state":
		return answer{"ok": true, "lost": grant.IsLost(), "fence": grant.Fence(), "token": grant.Token()}, nil
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

func (d *driver) connect(o order) error {
	if !o.Cluster && o.Sentinel == "" {
		// Several addresses would be those of a cluster.
		o.Servers = o.Servers[:1]
	}
	options := &redis.UniversalOptions{
		Addrs: o.Servers, MasterName: o.Sentinel, Username: o.Username, Password: o.Password, IsClusterMode: o.Cluster,
	}
	observer := redislock.Observer{
		Waited: func(lock *redislock.Lock, waited time.Duration, outcome redislock.Outcome) {
			say(answer{"event": "waited", "lock": d.nameOf(lock), "ms": waited.Milliseconds(), "outcome": outcome})
		},
		Granted: func(grant *redislock.Grant) {
			say(answer{"event": "granted", "lock": d.nameOf(grant.Lock())})
		},
		Unavailable: func(err error) { say(answer{"event": "unavailable", "text": err.Error()}) },
	}
	with := []redislock.LocksOption{redislock.WithObserver(observer)}
	if o.CommandTimeoutMs.isSet() {
		timeout, err := o.CommandTimeoutMs.duration()
		if err != nil {
			return err
		}
		with = append(with, redislock.WithCommandTimeout(timeout))
	}
	d.client = redis.NewUniversalClient(options)
	var err error
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
	keys := make([]string, 0, len(o.Keys))
	for _, key := range o.Keys {
		text, ok := key.(string)
		if !ok {
			return errUnrepresentable
		}
		keys = append(keys, text)
	}
	with, err := options(o)
	if err != nil {
		return err
	}
	lock, err := d.locks.LockAll(keys, with...)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.named[o.Lock] = lock
	return nil
}

func options(o order) ([]redislock.Option, error) {
	with := []redislock.Option{
		redislock.WithOnLost(func(*redislock.Grant) { say(answer{"event": "lost", "lock": o.Lock}) }),
	}
	var failed error
	duration := func(n number, option func(time.Duration) redislock.Option) {
		if n.isSet() {
			d, err := n.duration()
			with, failed = append(with, option(d)), errors.Join(failed, err)
		}
	}
	count := func(n number, option func(int) redislock.Option) {
		if n.isSet() {
			c, err := n.count()
			with, failed = append(with, option(c)), errors.Join(failed, err)
		}
	}
	flag := func(isSet bool, option func() redislock.Option) {
		if isSet {
			with = append(with, option())
		}
	}
	duration(o.LeaseMs, redislock.WithLease)
	duration(o.WaitMs, redislock.WithWait)
	duration(o.KeepMs, redislock.WithKeep)
	duration(o.MaxHoldMs, redislock.WithMaxHold)
	duration(o.AtLeastMs, redislock.WithAtLeast)
	duration(o.MarginMs, redislock.WithMargin)
	count(o.Limit, redislock.WithLimit)
	count(o.Permits, redislock.WithPermits)
	count(o.Replicas, redislock.WithReplicas)
	flag(o.Renew != nil && !*o.Renew, redislock.WithoutRenewal)
	flag(o.Shared, redislock.WithShared)
	flag(o.Session, redislock.WithSession)
	flag(o.Data != nil, func() redislock.Option { return redislock.WithData(*o.Data) })
	return with, failed
}

func (d *driver) acquire(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	var grant *redislock.Grant
	var err error
	if o.WaitMs.isSet() {
		wait, unrepresentable := o.WaitMs.duration()
		if unrepresentable != nil {
			return nil, unrepresentable
		}
		grant, err = lock.AcquireWithin(ctx, wait)
	} else {
		grant, err = lock.Acquire(ctx)
	}
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

// guarded calls work in a guarded block.
func guarded(ctx context.Context, lock *redislock.Lock, o order, work func(context.Context, *redislock.Grant) error) error {
	if !o.WaitMs.isSet() {
		return lock.Do(ctx, work)
	}
	wait, err := o.WaitMs.duration()
	if err != nil {
		return err
	}
	return lock.DoWithin(ctx, wait, work)
}

func (d *driver) block(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	work, err := o.WorkMs.duration()
	if err != nil {
		return nil, err
	}
	var entered int64
	err = guarded(ctx, lock, o, func(_ context.Context, grant *redislock.Grant) error {
		entered = grant.Fence()
		d.keep(o.Lock, grant)
		say(answer{"event": "in", "lock": o.Lock})
		time.Sleep(work)
		if o.Fail != nil {
			return failure(*o.Fail)
		}
		return nil
	})
	return answer{"ok": true, "fence": entered}, err
}

// write appends the fence to a list until the loss ends the block.
func (d *driver) write(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	err := guarded(ctx, lock, o, func(ctx context.Context, grant *redislock.Grant) error {
		for ctx.Err() == nil {
			if err := d.client.RPush(ctx, o.List, grant.Fence()).Err(); err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		return ctx.Err()
	})
	return answer{"ok": true}, err
}

// storm has many goroutines acquire a lock with short limits, again and again.
func storm(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	var mu sync.Mutex
	var releases []float64
	mostLate := 0.0
	until := time.Now().Add(time.Duration(o.Seconds * float64(time.Second)))
	acquires := func() error {
		for time.Now().Before(until) {
			wait := time.Duration(rand.Float64() * o.MostWaitMs * float64(time.Millisecond))
			began := time.Now()
			grant, err := lock.AcquireWithin(ctx, wait)
			late := time.Since(began) - wait
			mu.Lock()
			mostLate = max(mostLate, ms(late))
			mu.Unlock()
			if errors.Is(err, redislock.ErrNotAcquired) || errors.Is(err, redislock.ErrUnavailable) {
				continue
			}
			if err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
			began = time.Now()
			if err := grant.Release(ctx); err != nil {
				return err
			}
			mu.Lock()
			releases = append(releases, ms(time.Since(began)))
			mu.Unlock()
		}
		return nil
	}
	failures := make(chan error, o.Tasks)
	for range o.Tasks {
		go func() { failures <- acquires() }()
	}
	var failed error
	for range o.Tasks {
		failed = errors.Join(failed, <-failures)
	}
	slices.Sort(releases)
	p99 := 0.0
	if len(releases) > 0 {
		p99 = releases[len(releases)*99/100]
	}
	return answer{"ok": true, "grants": len(releases), "release_p99_ms": p99, "most_late_ms": mostLate}, failed
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
