// Bench measures Bobbin against floors that stand beside it in the same run: what the same machine does at the same minute
// for a bare loop on Postgres, a bare Temporal workflow, or a bare statement. The machine may be noisy, so what counts is the
// ratio: both sides are measured in turns, in small batches, several times, and the median of the ratios is shown with its
// spread.
//
// Everything is real: the bobbin binary as API and worker processes, a Postgres that syncs its log to disk, a Temporal server
// that keeps its state in it, and the scripted model provider, which this process serves together with a server of tools.
//
//	bench -rows accept,stop     some rows; none named: all
//	bench -short                tiny counts, to see that it works
//	bench -docs docs/benchmarks.md
//
// docs/benchmarks.md says what each row and each floor is.
package main
