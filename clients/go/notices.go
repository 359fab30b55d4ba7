package redislock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// The time after which a silent connection is asked whether it lives.
	silence = 3 * time.Second
	// The pause after a subscription that failed.
	subscribeAgain = time.Second
)

// bell wakes one waiter: nil says that it should ask again, an error that nothing can notify it.
type bell chan error

func (b bell) ring(err error) {
	select {
	case b <- err:
	default:
	}
}

// notices are the server's messages to waiters, on a channel of this program's own: one connection
// to each node.
type notices struct {
	client  redis.UniversalClient
	timeout time.Duration
	id      string

	mu     sync.Mutex
	last   uint64
	bells  map[string]bell
	ears   map[string]*ear
	heard  map[string]*ear
	pauses map[string]time.Time
	closed bool
}

// ear is one connection that listens.
type ear struct {
	node   string
	pubsub *redis.PubSub
}

func newNotices(client redis.UniversalClient, timeout time.Duration) *notices {
	return &notices{
		client: client, timeout: timeout, id: randomText(), bells: map[string]bell{}, ears: map[string]*ear{},
		heard: map[string]*ear{}, pauses: map[string]time.Time{},
	}
}

// channel returns the channel for a key. On a cluster, its hash tag puts it in the key's slot.
func (n *notices) channel(key string) string {
	name := "redis-lock:" + n.id
	if _, ok := n.client.(*redis.ClusterClient); ok {
		name += ":{" + tag(slot(key)) + "}"
	}
	return name
}

// add returns a bell and its message. Any subscriber can read the message, so it isn't the token.
func (n *notices) add() (string, bell) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	message := strconv.FormatUint(n.last, 36)
	b := make(bell, 1)
	n.bells[message] = b
	return message, b
}

func (n *notices) remove(message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.bells, message)
}

// listen subscribes to a channel in the background, unless it is subscribed. Once it is, all waiters
// are woken, because earlier messages were missed.
func (n *notices) listen(channel string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.heard[channel] != nil || time.Now().Before(n.pauses[channel]) {
		return
	}
	n.pauses[channel] = time.Now().Add(subscribeAgain)
	go n.subscribe(channel)
}

func (n *notices) subscribe(channel string) {
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout)
	defer cancel()
	e, err := n.ear(ctx, channel)
	if err == nil && n.isCluster() {
		err = e.pubsub.SSubscribe(ctx, channel)
	} else if err == nil {
		err = e.pubsub.Subscribe(ctx, channel)
	}
	if err != nil {
		n.drop(e, err)
		return
	}
	n.hears(channel, e)
}

// hears notes that a connection is subscribed, unless it was dropped meanwhile.
func (n *notices) hears(channel string, e *ear) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ears[e.node] == e {
		n.heard[channel] = e
	}
}

func (n *notices) isCluster() bool {
	_, ok := n.client.(*redis.ClusterClient)
	return ok
}

// ear returns the connection to the node of a channel.
func (n *notices) ear(ctx context.Context, channel string) (*ear, error) {
	node := n.client
	name := ""
	if cluster, ok := n.client.(*redis.ClusterClient); ok {
		master, err := cluster.MasterForKey(ctx, channel)
		if err != nil {
			return nil, err
		}
		node, name = master, master.Options().Addr
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.ears[name]
	if e == nil {
		e = &ear{name, node.Subscribe(context.Background())}
		n.ears[name] = e
		go n.hear(e)
	}
	return e, nil
}

// hear passes messages on until the connection fails.
func (n *notices) hear(e *ear) {
	asked := false
	for {
		message, err := e.pubsub.ReceiveTimeout(context.Background(), silence)
		switch message := message.(type) {
		case *redis.Message:
			n.mu.Lock()
			if b := n.bells[message.Payload]; b != nil {
				b.ring(nil)
			}
			n.mu.Unlock()
		case *redis.Subscription:
			if message.Kind == "sunsubscribe" {
				// The slot has moved to another node.
				n.drop(e, nil)
				return
			}
			n.wakeAll(nil)
		}
		switch {
		case err == nil:
			asked = false
		case isTimeout(err) && !asked:
			asked = true
			ctx, cancel := context.WithTimeout(context.Background(), n.timeout)
			_ = e.pubsub.Ping(ctx)
			cancel()
		default:
			n.drop(e, err)
			return
		}
	}
}

// drop forgets a connection. Waiters learn of a refusal; after an outage they ask and listen again.
func (n *notices) drop(e *ear, err error) {
	if e != nil {
		n.mu.Lock()
		if n.ears[e.node] == e {
			delete(n.ears, e.node)
		}
		for channel, heardBy := range n.heard {
			if heardBy == e {
				delete(n.heard, channel)
			}
		}
		n.mu.Unlock()
		_ = e.pubsub.Close()
	}
	// The connection may have been closed by a subscription that found no server.
	if err != nil && (isOutage(err) || errors.Is(err, redis.ErrClosed)) {
		err = nil
	}
	n.wakeAll(err)
}

func (n *notices) wakeAll(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.bells {
		b.ring(err)
	}
}

func (n *notices) close() {
	n.mu.Lock()
	n.closed = true
	ears := n.ears
	n.ears = map[string]*ear{}
	n.mu.Unlock()
	for _, e := range ears {
		_ = e.pubsub.Close()
	}
}

const slots = 16384

// slot returns the slot of a key in a cluster: the CRC16 of its hash tag.
func slot(key string) int {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}

// tags returns a hash tag for each slot.
var tags = sync.OnceValue(func() (found [slots]string) {
	for missing, number := slots, 0; missing > 0; number++ {
		text := strconv.Itoa(number)
		if place := &found[slot(text)]; *place == "" {
			*place = text
			missing--
		}
	}
	return found
})

func tag(slot int) string { return tags()[slot] }
