"""Child processes: started, watched, limited, and what they wrote collected."""
