package redislock

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestTheFirstWaitersOfAKeyMayBlock(t *testing.T) {
	b := newBlocking(redis.NewClient(&redis.Options{}))
	defer b.close()
	b.isContended.Store(true)
	var waiters []*waiter
	for range blockingSize + 2 {
		waiters = append(waiters, b.enter("k", make(bell, 1)))
	}
	late := b.enter("other", make(bell, 1))
	expectAdmitted := func(what string, expected ...*waiter) {
		t.Helper()
		admitted := map[*waiter]bool{}
		for _, w := range expected {
			admitted[w] = true
		}
		for number, w := range append(waiters, late) {
			if b.admits(w) != admitted[w] {
				t.Errorf("%s: waiter %d: %v", what, number, b.admits(w))
			}
		}
	}
	expectAdmitted("at first", waiters[:blockingSize]...)
	b.giveBack(waiters[3])
	expectAdmitted("one gives back", append(append([]*waiter{}, waiters[:3]...), waiters[4:blockingSize]...)...)
	b.leave(waiters[0])
	waiters = waiters[1:]
	expectAdmitted("one is granted", append(append([]*waiter{}, waiters[:2]...), waiters[3:blockingSize]...)...)
	if len(waiters[blockingSize-1].bell) != 1 || len(waiters[blockingSize].bell) != 0 {
		t.Error("the next one is woken, and no other")
	}
	for _, w := range waiters {
		b.leave(w)
	}
	b.leave(late)
	if said := fmt.Sprint(b.free, len(b.queues)); said != fmt.Sprint(blockingSize, 0) {
		t.Error(said)
	}
}

func TestNobodyBlocksWhereTheNodesChange(t *testing.T) {
	b := newBlocking(nil)
	w := b.enter("k", make(bell, 1))
	b.isContended.Store(true)
	if b.admits(w) {
		t.Error("it may block")
	}
	b.leave(w)
}

func TestAnUncontendedLockIsAskedForWithoutBlocking(t *testing.T) {
	b := newBlocking(redis.NewClient(&redis.Options{}))
	defer b.close()
	w := b.enter("k", make(bell, 1))
	if b.admits(w) {
		t.Error("it blocks alone")
	}
	b.enter("k", make(bell, 1))
	if !b.admits(w) {
		t.Error("it doesn't block before another one")
	}
}
