package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"forebay/tests/compat/play"
)

func (s *scenario) groupOfTwo(ctx context.Context) (play.Saw, error) {
	return play.GroupOfTwo(ctx, func(ctx context.Context, seen *play.Member) (func() error, error) {
		one := &member{topic: s.records, holds: seen.Holds, failed: seen.Failed}
		one.read = func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
			seen.Read(message.Partition, message.Offset)
			session.MarkMessage(message, "")
		}
		return one.leave, one.start(ctx, s.bootstrap, s.pair, config())
	})
}

func (s *scenario) commitAndResume(ctx context.Context) (play.Saw, error) {
	if err := s.create(ctx, s.line, 1, nil); err != nil {
		return nil, err
	}
	var lines []*sarama.ProducerMessage
	for i := range 20 {
		lines = append(lines, &sarama.ProducerMessage{Topic: s.line, Value: sarama.StringEncoder(fmt.Sprintf("line-%d", i))})
	}
	if err := s.send(config(), lines...); err != nil {
		return nil, err
	}
	tenth, err := s.readLine(ctx, 10, true)
	if err != nil {
		return nil, err
	}
	resumed, err := s.readLine(ctx, 1, false)
	if err != nil {
		return nil, err
	}
	return play.Saw{"committed": tenth.Offset + 1, "resumed": string(resumed.Value)}, nil
}

// readLine is the last of so many records that a new member of the group reads, which then commits it, or not, and leaves.
func (s *scenario) readLine(ctx context.Context, count int, commit bool) (*sarama.ConsumerMessage, error) {
	one := &member{topic: s.line}
	last := make(chan *sarama.ConsumerMessage, 1)
	read := 0
	one.read = func(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) {
		if read++; read != count {
			return
		}
		if commit {
			session.MarkMessage(message, "")
			session.Commit()
		}
		last <- message
	}
	failures := make(chan error, 1)
	one.failed = func(err error) {
		select {
		case failures <- err:
		default: // only the first is told
		}
	}
	manual := config()
	manual.Consumer.Offsets.AutoCommit.Enable = false
	if err := one.start(ctx, s.bootstrap, s.resume, manual); err != nil {
		return nil, err
	}
	var message *sarama.ConsumerMessage
	var err error
	select {
	case message = <-last:
	case err = <-failures:
	case <-ctx.Done():
		err = fmt.Errorf("waiting for %d records: %w", count, ctx.Err())
	}
	return message, errors.Join(err, one.leave())
}

func (s *scenario) listGroups(context.Context) (play.Saw, error) {
	groups, err := s.admin.ListConsumerGroups()
	_, listed := groups[s.resume]
	return play.Saw{"listed": listed}, err
}

// described waits for the state, and is the group in it.
func (s *scenario) described(ctx context.Context, state string) (*sarama.GroupDescription, error) {
	group := &sarama.GroupDescription{}
	err := play.Until(ctx, func() (bool, error) {
		groups, err := s.admin.DescribeConsumerGroups([]string{s.resume})
		if err != nil {
			return false, err
		}
		group = groups[0]
		if group.Err != sarama.ErrNoError {
			return false, group.Err
		}
		return group.State == state, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for %s, it is %q: %w", state, group.State, err)
	}
	return group, nil
}

// whileBusy does something while the group has a member, which then leaves.
func (s *scenario) whileBusy(ctx context.Context, do func(*sarama.GroupDescription)) error {
	one := &member{topic: s.line}
	if err := one.start(ctx, s.bootstrap, s.resume, config()); err != nil {
		return err
	}
	group, err := s.described(ctx, "Stable")
	if err == nil {
		do(group)
	}
	return errors.Join(err, one.leave())
}

func (s *scenario) describeGroup(ctx context.Context) (play.Saw, error) {
	var busy *sarama.GroupDescription
	if err := s.whileBusy(ctx, func(group *sarama.GroupDescription) { busy = group }); err != nil {
		return nil, err
	}
	empty, err := s.described(ctx, "Empty")
	if err != nil {
		return nil, err
	}
	return play.Saw{"member": busy.State, "empty": empty.State, "protocol_type": busy.ProtocolType}, nil
}

func (s *scenario) listGroupOffsets(context.Context) (play.Saw, error) {
	offsets, err := s.admin.ListConsumerGroupOffsets(s.resume, map[string][]int32{s.line: {0}})
	if err != nil {
		return nil, err
	}
	committed := offsets.GetBlock(s.line, 0)
	if committed == nil {
		return nil, fmt.Errorf("no offset of %s 0", s.line)
	}
	if committed.Err != sarama.ErrNoError {
		return nil, committed.Err
	}
	return play.Saw{"offset": committed.Offset}, nil
}

func (s *scenario) deleteBusyGroup(ctx context.Context) (play.Saw, error) {
	var refusal error
	if err := s.whileBusy(ctx, func(*sarama.GroupDescription) { refusal = s.admin.DeleteConsumerGroup(s.resume) }); err != nil {
		return nil, err
	}
	return refused(refusal, "NON_EMPTY_GROUP")
}

func (s *scenario) deleteGroup(ctx context.Context) (play.Saw, error) {
	if _, err := s.described(ctx, "Empty"); err != nil {
		return nil, err
	}
	if err := s.admin.DeleteConsumerGroup(s.resume); err != nil {
		return nil, err
	}
	return s.listGroups(ctx)
}

func (s *scenario) deleteMissingGroup(context.Context) (play.Saw, error) {
	return refused(s.admin.DeleteConsumerGroup(s.nobody), "GROUP_ID_NOT_FOUND")
}
