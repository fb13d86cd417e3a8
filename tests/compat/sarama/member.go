package main

import (
	"context"
	"errors"

	"github.com/IBM/sarama"
)

// member of a group, reading in the background. Its functions are called by Sarama's goroutines; `read` by one for each partition.
type member struct {
	group  sarama.ConsumerGroup
	topic  string
	stop   context.CancelFunc
	ended  chan error
	holds  func(partitions int)
	read   func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage)
	failed func(error)
}

// start joins the group; a nil function is not called. `stop` and `leave` end it.
func (m *member) start(ctx context.Context, bootstrap, group string, config *sarama.Config) error {
	var err error
	if m.group, err = sarama.NewConsumerGroup([]string{bootstrap}, group, config); err != nil {
		return err
	}
	m.ended = make(chan error, 1)
	ctx, m.stop = context.WithCancel(ctx)
	go func() {
		for err := range m.group.Errors() {
			if m.failed != nil {
				m.failed(err)
			}
		}
	}()
	go func() { m.ended <- m.consume(ctx) }()
	return nil
}

// consume joins again after every rebalance.
func (m *member) consume(ctx context.Context) error {
	for ctx.Err() == nil {
		err := m.group.Consume(ctx, []string{m.topic}, m)
		if errors.Is(err, sarama.ErrClosedConsumerGroup) {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			if m.failed != nil {
				m.failed(err)
			}
			return err
		}
	}
	return nil
}

// leave tells the group, and is the first error that the member met.
func (m *member) leave() error {
	m.stop()
	return errors.Join(<-m.ended, m.group.Close())
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	if m.holds != nil {
		m.holds(len(session.Claims()[m.topic]))
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error {
	if m.holds != nil {
		m.holds(0)
	}
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return nil
			}
			if m.read != nil {
				m.read(session, message)
			}
		case <-session.Context().Done():
			return nil
		}
	}
}
