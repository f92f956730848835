"""Arrays split over several devices."""
