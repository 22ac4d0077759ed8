"""Task stores."""
