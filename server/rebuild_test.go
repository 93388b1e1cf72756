package server

import (
	"strings"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// TestViewsAreMadeAnewAndCompared: what a start would publish now is what is
// published; where it is not, a person hears of it.
func TestViewsAreMadeAnewAndCompared(t *testing.T) {
	r := start(t, devConfig(dataDir(t)))
	r.register("10.0.0.1", "10.0.0.2")
	r.eventually("both instances are listed", func() bool { return len(listed(r.resolve())) == 2 })
	compared, differ := r.differingViews(t.Context(), 10*time.Millisecond)
	if compared != 1 || len(differ) != 0 {
		t.Errorf("%d compared, %v", compared, differ)
	}
	r.report.rebuilt(2, map[registry.Name]string{{Namespace: "shop", Service: "cart"}: "member i1 is here, rebuilt there"})
	logs := r.logs.String()
	for _, want := range []string{"kind=rebuild-differs service=shop/cart", "member i1 is here, rebuilt there", "compared=2 differ=1"} {
		if !strings.Contains(logs, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `sightline_incidents_total{kind="rebuild-differs"} 1`) {
		t.Error("the incident is not counted")
	}
}
