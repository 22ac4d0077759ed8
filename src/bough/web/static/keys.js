// Keyboard shortcuts.
export const SHORTCUTS = new Map();
