package views

import (
	"cmp"
	"slices"
	"time"
)

const (
	// foldAfter is how long a member must be at full weight before it goes back
	// to its shared locality; the move costs clients a reconnect (DESIGN.md §9).
	foldAfter = 15 * time.Minute
	// foldBatch members go back at a time, and then none for foldGap.
	foldBatch = 10
	foldGap   = 10 * time.Second
)

// chooseForm picks a service's form in one size class from its number of
// members, listed or not: a health signal must never switch a form. A form that
// was chosen is left only a quarter beyond the limit.
func chooseForm(before Form, chosen bool, members, limit int) Form {
	switch {
	case chosen && before == PerEndpoint:
		limit += limit / 4
	case chosen && before == Grouped:
		limit -= limit / 4
	}
	if members > limit {
		return Grouped
	}
	return PerEndpoint
}

// forms chooses the form of every size class.
func (a *Assembler) chooseForms(members int) (forms [SizeClasses]Form) {
	for class := range SizeClasses {
		if a.flat() {
			forms[class] = Flat
		} else {
			forms[class] = chooseForm(a.forms[class], a.formsChosen, members, class.Limit())
		}
	}
	a.forms, a.formsChosen = forms, true
	return forms
}

// markOwn decides which of the members have a locality of their own in the
// grouped form: those whose weight is not full, until 15 minutes after it is
// again. It returns when the next one goes back.
func (a *Assembler) markOwn(now time.Time, forms [SizeClasses]Form) (next time.Time) {
	grouped := slices.Contains(forms[:], Grouped)
	var ripe []*instance
	for _, i := range a.shown {
		d := &i.draft
		switch {
		case !grouped:
			i.own, i.fullSince = false, time.Time{}
		case d.Listed && d.Weight < d.BaseWeight:
			i.own, i.fullSince = true, time.Time{}
		case !i.own:
		case !d.Listed:
			i.fullSince = time.Time{}
		case i.fullSince.IsZero() || i.fullSince.After(now): // after: a clock was set back
			i.fullSince = now
			next = earlier(next, now.Add(foldAfter))
		case now.Sub(i.fullSince) >= foldAfter:
			ripe = append(ripe, i)
		default:
			next = earlier(next, i.fullSince.Add(foldAfter))
		}
	}
	if len(ripe) > 0 {
		next = earlier(next, a.fold(now, ripe))
	}
	for _, i := range a.shown {
		i.draft.OwnLocality = i.own
	}
	return next
}

// fold returns the ripest members to their shared localities.
func (a *Assembler) fold(now time.Time, ripe []*instance) (next time.Time) {
	if at := a.folded.Add(foldGap); at.After(now) {
		return at
	}
	slices.SortFunc(ripe, func(x, y *instance) int {
		return cmp.Or(x.fullSince.Compare(y.fullSince), cmp.Compare(x.uid, y.uid))
	})
	for n, i := range ripe {
		if n == foldBatch {
			next = now.Add(foldGap)
			break
		}
		i.own, i.fullSince = false, time.Time{}
	}
	a.folded = now
	return next
}
