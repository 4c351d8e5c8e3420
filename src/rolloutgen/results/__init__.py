"""What lies in a RESULTS_DIR: how outcomes get there, what they say on a resume, and the tables derived from them."""
