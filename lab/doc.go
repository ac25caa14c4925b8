// Lab runs the laboratory: tests that try to make Bobbin lose, double or reorder a message, load one that was withdrawn, run
// a side effect twice or reply twice, for as long as it takes. Its parts are tests like others, which `make test` runs in a
// short form with fixed choices; here each runs in its long form, one after the other, and one table says what they did.
//
// The last part turns that round: it breaks the engine on purpose, in one way after the other, and runs the short tests
// that must notice. Nothing in the checkout is touched; the go command is given another file in place of the one that is
// broken. Two are tried at once, each with the few tests that are about what it takes away, and a test that hangs has caught it
// as one that fails has. What no test catches is listed, and fails the laboratory as a lost message does.
//
//	lab -parts races,cells      some parts; none named: all
//	lab -mutations 'a take'     the mutations whose names match a pattern, and no other part
//	lab -v                      each race cell and each mutation with what caught it
//	lab -docs docs/benchmarks.md -readme README.md
//
// A part that fails does not stop the others. Its seeds are printed, and its log is kept.
package main
