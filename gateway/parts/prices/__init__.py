"""What hosted models cost, take and can do, as dated files of facts say; and who their providers are."""
