package svid

import (
	"context"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// FromWorkloadAPI asks a SPIFFE Workload API (unix:///path/to/socket) for the
// documents, waits for the first answer until ctx ends, and returns a source
// whose Run follows the API's updates. Losing the API later changes nothing
// while the SVID held is valid.
func FromWorkloadAPI(ctx context.Context, address string, e Events) (*Source, error) {
	client, err := workloadapi.New(context.WithoutCancel(ctx), workloadapi.WithAddr(address))
	if err != nil {
		return nil, fmt.Errorf("the Workload API at %s: %w", address, err)
	}
	first, err := client.FetchX509Context(ctx)
	if err != nil {
		return nil, fmt.Errorf("the Workload API at %s: no SVID: %w", address, joinClose(err, client))
	}
	d, err := newDocuments(first.DefaultSVID(), first.Bundles, time.Now())
	if err != nil {
		return nil, fmt.Errorf("the Workload API at %s: %w", address, joinClose(err, client))
	}
	s := newSource(d, e)
	s.release = client.Close
	s.run = func(ctx context.Context) error {
		w := &workloadWatcher{source: s, address: address}
		for {
			// It ends by itself on an answer of some codes, which is no reason
			// to end with it: what is held stays good until its own end.
			_ = client.WatchX509Context(ctx, w) // the watcher was told
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(watchAgain):
			}
		}
	}
	return s, nil
}

// watchAgain is how long after a watch that ended the next one begins.
const watchAgain = time.Second

func joinClose(err error, c *workloadapi.Client) error {
	if cerr := c.Close(); cerr != nil {
		return fmt.Errorf("%w (and closing the connection: %v)", err, cerr)
	}
	return err
}

// workloadWatcher is called by go-spiffe, one call at a time.
type workloadWatcher struct {
	source  *Source
	address string
}

func (w *workloadWatcher) OnX509ContextUpdate(c *workloadapi.X509Context) {
	d, err := newDocuments(c.DefaultSVID(), c.Bundles, time.Now())
	if err == nil && d.id.TrustDomain() != w.source.TrustDomain() {
		err = fmt.Errorf("the SVID is of trust domain %s, not %s", d.id.TrustDomain(), w.source.TrustDomain())
	}
	if err != nil {
		w.source.keep(fmt.Errorf("the Workload API at %s: %w", w.address, err))
		return
	}
	w.source.replace(d)
}

func (w *workloadWatcher) OnX509ContextWatchError(err error) {
	w.source.keep(fmt.Errorf("the Workload API at %s: %w", w.address, err))
}
