package redislock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The slots are those that CLUSTER KEYSLOT returns.
func TestSlotsAreThoseOfTheServer(t *testing.T) {
	for key, expected := range map[string]int{"foo": 12182, "{user1000}.following": 3443, "123456789": 12739} {
		if found := slot(key); found != expected {
			t.Errorf("%s: %d instead of %d", key, found, expected)
		}
	}
	if slot("{t}a") != slot("t") || slot("{}a") == slot("") {
		t.Error("hash tags")
	}
}

func TestEachSlotHasATag(t *testing.T) {
	for number := range slots {
		if slot("x{"+tag(number)+"}") != number {
			t.Fatalf("slot %d has the tag %s", number, tag(number))
		}
	}
}

func TestPausesDoubleUpToASecond(t *testing.T) {
	var pauses []string
	for pause := firstPause; len(pauses) < 7; pause = longer(pause) {
		pauses = append(pauses, pause.String())
	}
	if said := strings.Join(pauses, " "); said != "50ms 100ms 200ms 400ms 800ms 1s 1s" {
		t.Error(said)
	}
}

func TestMillisecondsAreRoundedUp(t *testing.T) {
	for d, expected := range map[time.Duration]int64{
		-time.Second: 1, 0: 1, time.Nanosecond: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000,
		Unlimited: 9223372036855,
	} {
		if ms(d) != expected {
			t.Errorf("%v: %d instead of %d", d, ms(d), expected)
		}
	}
}

func TestACommandIsEncoded(t *testing.T) {
	if said := fmt.Sprintf("%q", encode([]any{"LOCK.CANCEL", "k", 5})); said != `"*3\r\n$11\r\nLOCK.CANCEL\r\n$1\r\nk\r\n$1\r\n5\r\n"` {
		t.Error(said)
	}
}

// listening returns notices with a connection that listens for a channel, and the bell of a waiter.
func listening(t *testing.T, channel string) (*notices, *ear, bell) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	n := newNotices(client, time.Second)
	t.Cleanup(func() {
		n.close()
		_ = client.Close()
	})
	_, b := n.add()
	e := &ear{"", client.Subscribe(context.Background())}
	n.ears[""] = e
	n.hears(channel, e)
	return n, e, b
}

// A subscription that finds no server closes the connection that another goroutine reads.
func TestAWaiterAsksAgainAfterItsConnectionWasClosed(t *testing.T) {
	n, e, b := listening(t, "channel")
	if err := e.pubsub.Close(); err != nil {
		t.Fatal(err)
	}
	n.hear(e)
	if err := <-b; err != nil {
		t.Error(err)
	}
}

func TestAConnectionThatWasDroppedIsNotHeard(t *testing.T) {
	n, e, _ := listening(t, "channel")
	n.drop(e, nil)
	n.hears("channel", e)
	if n.heard["channel"] != nil {
		t.Error("nobody would listen again")
	}
}
