"""Write a compiled pair as a package, check it on another machine, and render it there."""
