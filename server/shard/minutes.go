package shard

import (
	"hash/fnv"
	"time"
)

// minuteFor is how long the evidence of a record was heard.
const minuteFor = time.Minute

// recordMinute keeps what was heard of the service within the last minute. Each
// service has its own second of the minute, so that a shard does not write all of
// them at once.
func (s *service) recordMinute(now time.Time) {
	save := s.set.cfg.SaveMinute
	switch {
	case save == nil || s.deleted:
		return
	case s.minuteAt.IsZero():
		h := fnv.New32a()
		h.Write([]byte(s.name.String()))
		s.minuteAt = now.Add(time.Second + time.Duration(h.Sum32()%60)*time.Second)
		return
	case now.Before(s.minuteAt):
		return
	}
	s.minuteAt = now.Add(minuteFor)
	if m, ok := s.evaluator.Minute(now); ok {
		save(s.name, m.Start, m.Append(nil))
	}
}
